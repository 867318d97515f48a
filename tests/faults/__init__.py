"""Planted faults: each breaks one invariant on purpose, and a check must fail."""
