"""Shape, joining, indexing and padding: elements are moved, not computed."""
