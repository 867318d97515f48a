"""CUDA text to shared libraries by g++: what stands in for NVRTC."""
