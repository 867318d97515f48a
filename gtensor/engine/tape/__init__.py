"""What is remembered: definitions of ops, records, recipes, and the tapes of levels."""
