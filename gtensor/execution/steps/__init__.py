"""Captured steps: what `gt.capture` records, compares and replays."""
