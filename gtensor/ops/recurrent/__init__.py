"""Recurrent layers over whole sequences, LSTM and GRU: imported with `gtensor.nn`."""
