"""Plans of a repeated step, from a recording of it."""
