"""Faults that rehearse.py plants among the ops: each may cost itself, and nothing beside it."""

import threading
from typing import Any

import gtensor as gt
from gtensor import hostcuda


def touch_loss(options: Any) -> None:
    gt.ones((2,), device="cuda")  # there is a context
    hostcuda.fail(700)
    gt.ones((2,), device="cuda").numpy()


def touch_hang(options: Any) -> None:
    threading.Event().wait()


CHECKS |= {"planted loss": touch_loss, "planted hang": touch_hang}  # noqa: F821
