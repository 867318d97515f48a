"""Batch, group, layer and RMS norm, and in-place activated batch norm."""
