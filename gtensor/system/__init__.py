"""What is below everything: files, locks, interrupts and lines of source code."""
