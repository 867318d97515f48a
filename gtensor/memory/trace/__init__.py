"""Recordings of allocations, and what is made of them: snapshots, pages, pictures."""
