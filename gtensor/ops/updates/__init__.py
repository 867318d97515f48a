"""The updates of the optimizers."""
