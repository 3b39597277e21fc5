"""Bit-exact MXFP8 quantization for PyTorch."""
