"""Activations, softmax and dropout."""
