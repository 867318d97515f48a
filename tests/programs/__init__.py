"""Programs as public ones are written: one text runs under PyTorch and under gtensor."""
