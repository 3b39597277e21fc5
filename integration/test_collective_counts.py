"""How often ranks gather, reduce and agree in a step, as exact numbers.

Every run of a program of the transport counts, and every other collective call. Gathers of shared
weights move nothing: they check that the owners have published.
"""

from collections import Counter

import pytest
from integration.user_reports.comparison import POISONED
from packages.fsdp_runtime.tests.runtime.scenes import ids, on_ranks

from sshsdp_fsdp_runtime import Sharding
from sshsdp_shardchain import Degrees
from sshsdp_zerosm import Program, Transport

SHARED = {"form": "shared"}
GROUPS = 4  # of three layers, and of the root with embedding, head and gain; one list each
MICROBATCHES = 3


def counted(monkeypatch):
    """Phases and collective calls of this process, counted by name from now on."""
    counts = Counter()

    def watch(owner, name):
        original = getattr(owner, name)

        def call(self, *args, **kwargs):
            counts[args[0] if owner is Program else name] += 1
            return original(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    for owner, name in (
        (Program, "run"),
        (Transport, "idle"),
        (Transport, "publish"),
        (Transport, "start_exchange"),
    ):
        watch(owner, name)
    return counts


def steps(monkeypatch, degrees, *, clip, **options):
    """What every rank of four counts in each of three steps."""

    def scene(rank, model):
        counts = counted(monkeypatch)
        seen = []
        for _ in range(3):
            counts.clear()
            for _ in range(MICROBATCHES):
                model(ids(rank.rank)).sum().backward()
            if clip:
                model.optimizer.clip_grad_norm_(1.0)
            model.optimizer.step()
            model.optimizer.zero_grad()
            seen.append(dict(counts))
        return seen

    sharding = [Sharding("**", Degrees(*degrees))]
    return [step for rank in on_ranks(4, scene, sharding=sharding, **options) for step in rank]


# Per step: passes agree on their end, and once on what was used; the norm takes an exchange.
AGREEMENT = dict.fromkeys(("open", "opened", "post", "collect"), MICROBATCHES + 1)
AGREEMENT["start_exchange"] = 1
EACH_MICROBATCH = dict.fromkeys(("acquire", "ready", "reduce"), GROUPS * MICROBATCHES)


@pytest.mark.parametrize("clip", [False, True], ids=["", "clipped"])
@pytest.mark.parametrize(
    ("options", "gathers"),
    [(SHARED, GROUPS), (POISONED, 2 * GROUPS * MICROBATCHES)],
    ids=["shared", "private"],
)
def test_zero3_gathers_and_reduces_each_group_in_each_microbatch(
    monkeypatch, options, gathers, clip
):
    expected = AGREEMENT | EACH_MICROBATCH | {"gather": gathers, "idle": 1, "publish": 1}
    for step in steps(monkeypatch, (4, 4, 4), clip=clip, **options):
        assert step == expected


@pytest.mark.parametrize(
    ("options", "gathers"),
    [(SHARED, GROUPS), (POISONED, 2 * GROUPS * MICROBATCHES)],
    ids=["shared", "private"],
)
def test_outer_zero1_adds_one_gather_and_one_reduction_of_each_list_to_a_step(
    monkeypatch, options, gathers
):
    expected = AGREEMENT | EACH_MICROBATCH | {"gather": gathers + 1, "idle": 1, "publish": 2}
    expected["reduce"] += GROUPS
    for step in steps(monkeypatch, (2, 2, 4), clip=False, **options):
        assert step == expected


@pytest.mark.parametrize("options", [SHARED, POISONED], ids=["shared", "private"])
def test_zero1_reduces_each_list_once_and_gathers_once_in_a_step(monkeypatch, options):
    expected = AGREEMENT | {"reduce": GROUPS, "gather": 1, "idle": 1, "publish": 2}
    for step in steps(monkeypatch, (1, 1, 4), clip=False, **options):
        assert step == expected
