"""Wrong calls of every public callable, generated from the signatures: `python -m wrong_calls`."""
