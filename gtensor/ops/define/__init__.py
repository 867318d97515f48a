"""What definitions are built of: paths, tiles, formulas, checks of arguments."""
