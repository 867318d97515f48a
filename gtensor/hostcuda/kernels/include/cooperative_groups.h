#error "cooperative groups: the host device runs one block after the other and has none"
