"""Kernels for GPUs, in Triton; `quantize`, `write_scales` and others call them for CUDA tensors.

Importing this needs no Triton: modules that do (`*_kernel`, `*_tile`, `definition`, `lookup`) are
imported where something is launched. Everything is checked before.
"""

from sshsdp_mxfp.kernels.jobs import QuantizeJob
from sshsdp_mxfp.kernels.launch import Launch, MissingTritonError

__all__ = ["Launch", "MissingTritonError", "QuantizeJob"]
