"""The engine, which names no op, in five rooms; each imports those before it only.

handle (what a tensor is) <- tape (what is remembered) <- walk (backward) <- run (how an op runs)
<- transforms (`jvp`, `vmap`).
"""
