"""What formats would do to a tensor: measured, drawn and advised on.

``python -m sshsdp_mxfp explain --help`` is the command (extra ``explain``). `measure` and
`summarize` need torch alone.
"""

from sshsdp_mxfp.explain.advice import advise
from sshsdp_mxfp.explain.command import main
from sshsdp_mxfp.explain.loss import Loss, measure
from sshsdp_mxfp.explain.names import name_of, parse_formats
from sshsdp_mxfp.explain.summary import Summary, summarize

__all__ = [
    "Loss",
    "Summary",
    "advise",
    "main",
    "measure",
    "name_of",
    "parse_formats",
    "summarize",
]
