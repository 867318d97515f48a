"""Pooling, and images at another size."""
