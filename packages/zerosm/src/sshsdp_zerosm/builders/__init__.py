"""One function per algorithm; each gives a Schedule."""

from sshsdp_zerosm.builders.all_gather_aliased import all_gather_aliased
from sshsdp_zerosm.builders.all_gather_pull import all_gather_pull
from sshsdp_zerosm.builders.all_gather_push import all_gather_push
from sshsdp_zerosm.builders.all_reduce import all_reduce
from sshsdp_zerosm.builders.reduce_scatter import reduce_scatter

__all__ = [
    "all_gather_aliased",
    "all_gather_pull",
    "all_gather_push",
    "all_reduce",
    "reduce_scatter",
]
