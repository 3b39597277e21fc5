"""Communication as data: schedules of puts, pulls, signals and sums over registered memory.

Builders make schedules, a transport compiles and runs them: Loopback plays all ranks in one thread
(the reference), ``connect`` joins processes of one host over shared memory.
"""

from sshsdp_zerosm.arena import Arena
from sshsdp_zerosm.builders import (
    all_gather_aliased,
    all_gather_pull,
    all_gather_push,
    all_reduce,
    all_reduce_workspace,
    by_rank,
    exchange,
    hierarchical_all_gather,
    hierarchical_all_reduce,
    hierarchical_reduce_scatter,
    merge,
    reduce_scatter,
    reduce_scatter_workspace,
)
from sshsdp_zerosm.connect import connect
from sshsdp_zerosm.counters import Counters
from sshsdp_zerosm.errors import (
    AbortedError,
    DeadlockError,
    OrderError,
    PeerClosedError,
    PeerDiedError,
    TransportError,
    WaitTimeoutError,
)
from sshsdp_zerosm.fragment_exchange import TransportExchange, message_schedule
from sshsdp_zerosm.loopback import Loopback
from sshsdp_zerosm.mailbox import Exchange
from sshsdp_zerosm.ops import Fence, Op, Pull, Put, Reduce, Signal, Wait, WaitGeneration
from sshsdp_zerosm.program import Program
from sshsdp_zerosm.region import Region
from sshsdp_zerosm.schedule import Schedule
from sshsdp_zerosm.topology import Topology
from sshsdp_zerosm.transport import Transport
from sshsdp_zerosm.verification import (
    Idle,
    Publish,
    Rates,
    Run,
    Scene,
    ScheduleError,
    Simulation,
    Traffic,
    Use,
    Verified,
    op_traffic,
    simulate,
    traffic,
    verify,
)
from sshsdp_zerosm.waits import Waits

__all__ = [
    "AbortedError",
    "Arena",
    "Counters",
    "DeadlockError",
    "Exchange",
    "Fence",
    "Idle",
    "Loopback",
    "Op",
    "OrderError",
    "PeerClosedError",
    "PeerDiedError",
    "Program",
    "Publish",
    "Pull",
    "Put",
    "Rates",
    "Reduce",
    "Region",
    "Run",
    "Scene",
    "Schedule",
    "ScheduleError",
    "Signal",
    "Simulation",
    "Topology",
    "Traffic",
    "Transport",
    "TransportError",
    "TransportExchange",
    "Use",
    "Verified",
    "Wait",
    "WaitGeneration",
    "WaitTimeoutError",
    "Waits",
    "all_gather_aliased",
    "all_gather_pull",
    "all_gather_push",
    "all_reduce",
    "all_reduce_workspace",
    "by_rank",
    "connect",
    "exchange",
    "hierarchical_all_gather",
    "hierarchical_all_reduce",
    "hierarchical_reduce_scatter",
    "merge",
    "message_schedule",
    "op_traffic",
    "reduce_scatter",
    "reduce_scatter_workspace",
    "simulate",
    "traffic",
    "verify",
]
