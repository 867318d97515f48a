"""How an op runs: `bind`, its text, and every way in which a tensor is written."""
