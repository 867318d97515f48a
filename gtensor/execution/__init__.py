"""Streams, events and captured graphs for users."""
