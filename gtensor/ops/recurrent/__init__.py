"""Recurrent layers over whole sequences: LSTM and GRU."""

from gtensor.ops.recurrent import gru, lstm

__all__: list[str] = []  # the modules are public in gtensor.nn
