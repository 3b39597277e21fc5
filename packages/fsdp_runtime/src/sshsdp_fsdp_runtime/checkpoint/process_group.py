"""The process group over which torch.distributed.checkpoint coordinates ranks."""

from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointError
from sshsdp_fsdp_runtime.checkpoint.protocol import CheckpointTransport


def process_group(transport: CheckpointTransport) -> dist.ProcessGroup | None:
    """The default group, made (gloo) on the transport's store the first time if there is none.

    Only plans and outcomes travel over it, no tensor bytes. World 1 needs none.

    Raises:
        CheckpointError: the default group spans other ranks than the transport, or there is neither
            a default group nor a store to make one.
    """
    if transport.world == 1:
        return None
    if not dist.is_initialized():
        store = getattr(transport, "store", None)
        if store is None:
            raise CheckpointError(
                "expected torch.distributed to be initialized or a transport with a store, got "
                "neither; call torch.distributed.init_process_group('gloo') before checkpoints"
            )
        dist.init_process_group(
            "gloo",
            store=PrefixStore("sshsdp/checkpoint", store),
            rank=transport.rank,
            world_size=transport.world,
            timeout=timedelta(seconds=transport.timeout),
        )
    ours, theirs = (transport.rank, transport.world), (dist.get_rank(), dist.get_world_size())
    if ours != theirs:
        raise CheckpointError(
            f"expected torch.distributed to number the ranks as the transport does (rank "
            f"{ours[0]} of {ours[1]}), got rank {theirs[0]} of {theirs[1]}; initialize both alike"
        )
    return dist.group.WORLD
