"""View-based shared storage for PyTorch: many tensors, one allocation, no copies."""
