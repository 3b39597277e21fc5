"""A model that is nothing but tensors with known values, cut as the runtime cuts them."""

import math
from dataclasses import dataclass, field
from datetime import timedelta

import torch

from sshsdp_fsdp_runtime.runtime import CheckpointEntry
from sshsdp_shardchain import Degrees, Layout, Level

SHAPES = {
    "matrix": (7, 5),
    "cube": (3, 5, 7),
    "four": (2, 3, 5, 7),
    "layers.0.scalar": (),
    "layers.0.nothing": (0, 4),
    "layers.0.no_columns": (3, 0),
    "layers.1.tiny": (2,),
    "layers.1.prime": (97,),
    "layers.1.half": (11, 3),
}
DTYPES = {"layers.1.half": torch.bfloat16}
FIELDS = ("exp_avg", "exp_avg_sq")


class StoreTransport:
    """Exchanges small messages through a store."""

    max_exchange_bytes = 1000  # so that longer ones are cut
    failed = False

    def __init__(self, rank, world, store=None, timeout=60.0):
        self.rank = rank
        self.world = world
        self.store = store
        self.timeout = timeout
        self.round = 0

    def exchange(self, payload):
        assert len(payload) <= self.max_exchange_bytes
        if self.world == 1:
            return [payload]
        self.round += 1
        self.store.set(f"exchange/{self.round}/{self.rank}", payload)
        keys = [f"exchange/{self.round}/{r}" for r in range(self.world)]
        self.store.wait(keys, timedelta(seconds=self.timeout))
        return [self.store.get(key) for key in keys]

    def barrier(self):
        self.exchange(b"")


def logical(name, shapes=SHAPES, kind="weight"):
    """The full tensor of a key: distinct, exactly representable values."""
    shape = shapes[name]
    seed = 3 * list(shapes).index(name) + ("weight", *FIELDS).index(kind)
    values = torch.arange(math.prod(shape)) % 61 + seed
    return values.to(DTYPES.get(name, torch.float32)).reshape(shape)


@dataclass
class CutModel:
    transport: StoreTransport
    zero1: int = 0
    shapes: dict = field(default_factory=lambda: dict(SHAPES))
    filled: bool = True

    def __post_init__(self):
        world, rank = self.transport.world, self.transport.rank
        zero1 = self.zero1 or world
        self.scalars = {"steps": dict.fromkeys(self.shapes, 5), "param_groups": []}
        if self.filled:
            groups = [{"lr": 0.25, "params": ["matrix"]}, {"lr": 7, "params": []}, {"lr": 1e-30}]
            self.scalars["param_groups"] = groups
        self.loaded = 0
        self.entries = []
        for dtype in (torch.float32, torch.bfloat16):
            names = [n for n in self.shapes if DTYPES.get(n, torch.float32) == dtype]
            members = [(n, math.prod(self.shapes[n])) for n in names]
            layout = Layout.pack(members, Degrees(1, 1, zero1), world)
            writes = layout.chain.replicas(Level.ZERO1, rank)[0] == rank
            for kind in ("weight", *FIELDS):
                self._cut(layout, rank, kind, dtype, writes)

    def _cut(self, layout, rank, kind, dtype, writes):
        buffer = torch.full((layout.chain.range(Level.ZERO1, rank).numel,), torch.nan, dtype=dtype)
        for part in layout.fragments(Level.ZERO1, rank):
            local = buffer[part.local_offset : part.local_offset + part.numel]
            if self.filled:
                full = logical(part.name, self.shapes, kind)
                local.copy_(full.reshape(-1)[part.start : part.stop])
            key = f"optimizer.state.{part.name}.{kind}"
            if kind == "weight":
                key = f"model.{part.name}"
            shape = self.shapes[part.name]
            self.entries.append(
                CheckpointEntry(key, shape, dtype, part.start, part.stop, local, writes)
            )

    def checkpoint_tensors(self):
        return iter(self.entries)

    def checkpoint_scalars(self):
        return self.scalars

    def load_checkpoint_scalars(self, scalars):
        self.scalars = scalars

    def checkpoint_layout(self):
        return {"nodes": 1, "ranks_per_node": self.transport.world}

    def weights_loaded(self):
        self.loaded += 1

    def assert_exact(self):
        """Every local element has the value of the logical tensor."""
        for entry in self.entries:
            name = entry.key.removeprefix("model.").removeprefix("optimizer.state.")
            kind = name.rpartition(".")[2] if entry.key.startswith("optimizer.") else "weight"
            full = logical(name.removesuffix(f".{kind}"), self.shapes, kind).reshape(-1)
            torch.testing.assert_close(
                entry.tensor, full[entry.start : entry.stop], rtol=0, atol=0, msg=entry.key
            )
