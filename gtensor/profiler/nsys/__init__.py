"""Nsight Systems: sessions under `nsys profile`, and what their exports say of ops."""
