"""Draws whose parameters are tensors, by a key for each element: imported with `gtensor.random`."""
