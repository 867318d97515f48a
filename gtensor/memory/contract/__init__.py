"""What every resource of memory keeps to: blocks, limits, adaptors, sizes in words."""
