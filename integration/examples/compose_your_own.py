"""A trainer of one's own: the four packages below the runtime, put together by hand.

Each rank keeps a part of the optimizer's state and of the summed gradients. The weights are one
mapping that the ranks of this machine share: a gather moves nothing. Backward accumulates straight
into the buffer that is reduced. The model and the training loop are plain PyTorch.

    python compose_your_own.py
"""

import sys
import tempfile
from multiprocessing import get_context
from typing import Literal

import torch
from torch import nn
from torch.distributed import FileStore

from sshsdp_datatree import DataNode, TensorList
from sshsdp_shardchain import Degrees, Layout, Level
from sshsdp_updates import AdamW, ShardedOptimizer, UpdateList, UpdateMember, UpdateRule
from sshsdp_zerosm import Region, Transport, all_gather_aliased, connect, reduce_scatter

WORLD, STEPS, MICROBATCHES = 2, 60, 2


class Sharded:
    """The buffers of a model, and what its optimizer asks of them. Building one is collective."""

    def __init__(self, model: nn.Module, rule: UpdateRule, transport: Transport) -> None:
        parameters = dict(model.named_parameters())
        dtype = next(iter(parameters.values())).dtype
        rank, world = transport.rank, transport.world

        # shardchain: in which order, and who updates what.
        sizes = [(name, p.numel()) for name, p in parameters.items()]
        degrees = Degrees.for_zero3(world)
        layout = Layout.pack(sizes, degrees, world, align=64 // dtype.itemsize)
        own = layout.chain.range(Level.ZERO1, rank)

        # datatree: which tensors are parts of which others.
        places = [(name, p.shape, layout.placement(name).offset) for name, p in parameters.items()]
        weights = TensorList.build("weights", dtype, places, layout.numel)
        start = own.start * dtype.itemsize
        shard = DataNode("shard", (own.numel,), dtype, parent=weights, byte_offset=start)
        gradients = TensorList.build("gradients", dtype, places, layout.numel)
        sums = DataNode("sums", (own.numel,), dtype)

        # zerosm: memory that peers can reach, and what is done with it.
        for root in (weights, gradients, sums):
            root.finalize()
            arena = transport.arena(root.name, root.nbytes, shared=root is weights)
            root.attach(arena.tensor())
        transport.seal()
        gather = transport.compile(all_gather_aliased("gather", group=range(world), world=world))
        self._reduce = transport.compile(
            reduce_scatter(
                "reduce",
                inputs=[Region("gradients", r, 0, gradients.nbytes) for r in range(world)],
                accumulators=[Region("sums", r, 0, sums.nbytes) for r in range(world)],
                dtype=dtype,
                accumulator=dtype,
                group=range(world),
                world=world,
                slot="gradients",
                scale=1 / world,
            )
        )
        self._transport, self._gradients = transport, gradients

        # The model computes in these buffers from now on.
        for name, parameter in parameters.items():
            if rank == 0:
                weights.member(name).tensor.copy_(parameter.detach())
            parameter.data = weights.member(name).tensor
            parameter.grad = gradients.member(name).tensor
        transport.publish()
        model.register_forward_pre_hook(lambda *_: gather.run("gather"))
        self.zero_grad()

        # updates: the rule, over this rank's part.
        members = tuple(
            UpdateMember(f.name, parameters[f.name], f, tuple(parameters[f.name].shape))
            for f in layout.fragments(Level.ZERO1, rank)
        )
        lists = [UpdateList("all", rule, members, shard.tensor, sums.tensor)]
        self.optimizer = ShardedOptimizer(lists, reducer=self, steps=self)

    def zero_grad(self) -> None:
        """Begin a round, once the others have read the gradients of the last one."""
        self._reduce.run("acquire")
        self._gradients.tensor.zero_()
        self._final = False

    def finalize_gradients(self) -> bool:
        """Sum over ranks, once per round: whoever clips has it done before the step has."""
        if self._final:
            return False
        self._reduce.run("ready")
        self._reduce.run("reduce")
        self._final = True
        return True

    def used(self, name: str) -> bool:  # noqa: ARG002
        """Every parameter of this model has a gradient."""
        return True

    def begin_update(self) -> None:
        """Wait until no rank computes with the weights."""
        self._transport.idle()

    def end_update(self) -> None:
        """Let the others compute with the weights that this rank has written."""
        self._transport.publish()

    def all_reduce(self, tensor: torch.Tensor, op: Literal["sum", "max"]) -> None:
        """Combine a few numbers, such as norms, in the same order on every rank."""
        messages = self._transport.exchange(tensor.numpy().tobytes())
        parts = [torch.frombuffer(bytearray(m), dtype=tensor.dtype) for m in messages]
        stacked = torch.stack(parts).view(-1, *tensor.shape)
        tensor.copy_(stacked.sum(0) if op == "sum" else stacked.amax(0))


def fresh_model() -> nn.Module:
    """The same on every rank."""
    torch.manual_seed(0)
    layers = (nn.Linear(8, 33), nn.GELU(), nn.Linear(33, 17), nn.GELU(), nn.Linear(17, 1))
    return nn.Sequential(*layers).double()


def loss_of(model: nn.Module, rank: int, step: int, microbatch: int) -> torch.Tensor:
    """Of a batch of its own for every rank; microbatches and ranks are averaged."""
    random = torch.Generator().manual_seed(1000 * step + 10 * microbatch + rank)
    x = torch.randn(64, 8, generator=random, dtype=torch.float64)
    target = torch.sin(x[:, :1] + x[:, 1:2])
    return nn.functional.mse_loss(model(x), target) / MICROBATCHES


def train(model: nn.Module, transport: Transport) -> list[float]:
    """Train on this rank; returns its losses."""
    optimizer = Sharded(model, AdamW(lr=1e-2), transport).optimizer
    losses = []
    for step in range(STEPS):
        total = 0.0
        for microbatch in range(MICROBATCHES):
            loss = loss_of(model, transport.rank, step, microbatch)
            loss.backward()
            total += loss.item()
        optimizer.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def main(rank: int, path: str) -> None:
    """What each process runs."""
    torch.set_num_threads(1)
    with connect(rank, WORLD, FileStore(path, WORLD), timeout=60) as transport:
        losses = train(fresh_model(), transport)
        if rank == 0:
            print(*(f"step {s}: loss {losses[s]:.3f}" for s in range(0, STEPS, 10)), sep="\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        start = get_context("fork").Process
        ranks = [start(target=main, args=(rank, f"{folder}/store")) for rank in range(WORLD)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        sys.exit(any(process.exitcode for process in ranks))
