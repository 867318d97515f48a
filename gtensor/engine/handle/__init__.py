"""What a tensor is: its handle, its storage, its node; and the modes of a thread."""
