"""Bit-exact MXFP8 quantization for PyTorch.

E4M3 elements that share an E8M0 scale per block of 32x32 or 1x32, after the OCP Microscaling
Formats (MX) specification 1.0.
"""

from sshsdp_mxfp.dequantize import dequantize
from sshsdp_mxfp.quantize import quantize
from sshsdp_mxfp.tensor import MXTensor

__all__ = ["MXTensor", "dequantize", "quantize"]
