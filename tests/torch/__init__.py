"""The integration of PyTorch, on the CPU."""
