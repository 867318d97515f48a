"""Transforms of functions: each has a kind of handle and a rule by which an op runs on it."""
