"""One function per algorithm; each gives a Schedule."""

from sshsdp_zerosm.builders.all_gather_aliased import all_gather_aliased
from sshsdp_zerosm.builders.all_gather_pull import all_gather_pull
from sshsdp_zerosm.builders.all_gather_push import all_gather_push
from sshsdp_zerosm.builders.all_reduce import all_reduce
from sshsdp_zerosm.builders.combine import by_rank, merge
from sshsdp_zerosm.builders.exchange import exchange
from sshsdp_zerosm.builders.hierarchical_all_gather import hierarchical_all_gather
from sshsdp_zerosm.builders.hierarchical_all_reduce import (
    all_reduce_workspace,
    hierarchical_all_reduce,
)
from sshsdp_zerosm.builders.hierarchical_reduce_scatter import (
    hierarchical_reduce_scatter,
    reduce_scatter_workspace,
)
from sshsdp_zerosm.builders.reduce_scatter import reduce_scatter

__all__ = [
    "all_gather_aliased",
    "all_gather_pull",
    "all_gather_push",
    "all_reduce",
    "all_reduce_workspace",
    "by_rank",
    "exchange",
    "hierarchical_all_gather",
    "hierarchical_all_reduce",
    "hierarchical_reduce_scatter",
    "merge",
    "reduce_scatter",
    "reduce_scatter_workspace",
]
