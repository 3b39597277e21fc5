"""Schedules describe themselves, differ when they differ, and refuse what can't work."""

import pytest
import torch

from sshsdp_zerosm import (
    Loopback,
    Pull,
    Put,
    Reduce,
    Region,
    Schedule,
    Signal,
    Wait,
    WaitGeneration,
    all_gather_aliased,
    all_gather_pull,
    all_reduce,
    reduce_scatter,
)


def regions(arena, nbytes, world=2):
    return [Region(arena, rank, 0, nbytes) for rank in range(world)]


def scatter(**changes):
    arguments = {
        "inputs": regions("in", 16),
        "accumulators": regions("sum", 8),
        "dtype": torch.float32,
        "accumulator": torch.float32,
        "group": (0, 1),
        "world": 2,
        "slot": "s",
    }
    return reduce_scatter("r", **arguments | changes)


def test_describe_lists_every_operation_of_a_rank():
    assert scatter(scale=0.5).describe(1) == (
        "schedule r, rank 1 of 2\n"
        "  acquire\n"
        "    wait s.done of 0 credit 1\n"
        "  ready\n"
        "    signal s.ready to 0\n"
        "  reduce\n"
        "    wait s.ready of 0\n"
        "    reduce sum[1][0:8] (float32) = 0.5 * (in[0][8:16] + in[1][8:16])"
        " (float32 summed in float32)\n"
        "    signal s.done to 0"
    )


def test_pulls_start_at_the_next_rank_so_that_owners_are_not_mobbed():
    schedule = all_gather_pull(
        "g", shards=regions("in", 4, 3), outputs=regions("out", 12, 3), group=range(3), world=3
    )
    pulls = [op.source.rank for op in schedule.ops("gather", 1) if isinstance(op, Pull)]
    assert pulls == [2, 0, 1]


@pytest.mark.parametrize(
    "changes",
    [
        {"scale": 2.0},
        {"slot": "t"},
        {"dtype": torch.bfloat16, "inputs": regions("in", 8)},
        {"inputs": [region.part(0, 16) for region in regions("other", 99)]},
        {
            "group": (1, 0),
            "inputs": regions("in", 16)[::-1],
            "accumulators": regions("sum", 8)[::-1],
        },
    ],
)
def test_signature_changes_with_every_part(changes):
    assert scatter().signature() == scatter().signature()
    assert scatter(**changes).signature() != scatter().signature()


def test_ranks_outside_the_group_have_nothing_to_do():
    schedule = all_gather_aliased("g", group=(2, 0), world=4)
    assert tuple(schedule.ops("gather", rank) for rank in range(4)) == (
        (WaitGeneration(2),),
        (),
        (WaitGeneration(0),),
        (),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": torch.int8}, "expected a payload of float32, float64, bfloat16, got torch.int8"),
        ({"dtype": torch.float16}, "got torch.float16"),
        ({"accumulator": torch.bfloat16}, "accumulator of float32, float64 not narrower"),
        (
            {"dtype": torch.float64, "inputs": regions("in", 32)},
            "not narrower than torch.float64, got torch.float32",
        ),
        ({"inputs": regions("in", 20)}, "expected inputs of 4 elements"),
        ({"inputs": regions("in", 18)}, "multiples of 4"),
        ({"inputs": regions("in", 16)[::-1]}, r"got regions of ranks \(1, 0\)"),
        ({"group": (0, 0)}, "expected one or more distinct ranks below 2"),
        ({"group": (0, 2)}, "distinct ranks below 2"),
        ({"group": ()}, "distinct ranks below 2"),
    ],
)
def test_a_reduce_scatter_that_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        scatter(**changes)


def test_gather_and_all_reduce_check_their_sizes():
    with pytest.raises(ValueError, match="output of 8 bytes, the sum of the shards"):
        all_gather_pull(
            "g", shards=regions("a", 4), outputs=regions("b", 12), group=(0, 1), world=2
        )
    common = {"dtype": torch.float32, "accumulator": torch.float32, "group": (0, 1), "world": 2}
    with pytest.raises(ValueError, match="equally long buffers"):
        all_reduce("a", buffers=[A, B.part(0, 4)], chunk_align=1, **common)
    with pytest.raises(ValueError, match="chunk_align >= 1, got 0"):
        all_reduce("a", buffers=regions("a", 8), chunk_align=0, **common)


A, B = regions("a", 8)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (Put(B, A), "expected a source of rank 0"),
        (Pull(A, B), "expected a target of rank 0"),
        (Reduce((A,), B, torch.float32, torch.float32), "its owner reduces into it"),
        (Signal("c", (0,)), "each other rank at most once"),
        (Signal("c", (1, 1)), "each other rank at most once"),
        (Signal("c", (2,)), r"ranks below 2, got \[2\]"),
        (Wait(0, "c"), "another rank to wait for"),
        (Wait(5, "c"), r"ranks below 2, got \[5\]"),
        (WaitGeneration(0), "another rank to wait for"),
        (Pull(Region("a", 7, 0, 8), A), r"ranks below 2, got \[7\]"),
    ],
)
def test_an_operation_that_its_rank_may_not_do_is_refused(op, message):
    with pytest.raises(ValueError, match=f"schedule 's', phase 'p', rank 0.*{message}"):
        Schedule("s", 2, {"p": ((op,), ())})


def test_operations_refuse_regions_that_do_not_fit():
    with pytest.raises(ValueError, match="equally long regions"):
        Pull(A, B.part(0, 4))
    with pytest.raises(ValueError, match="apart from each other"):
        Put(A.part(0, 6), A.part(2, 6))
    with pytest.raises(ValueError, match="at least one source"):
        Reduce((), A, torch.float32, torch.float32)
    with pytest.raises(ValueError, match="a target that is a source or apart from it"):
        Reduce((A,), Region("a", 0, 4, 8), torch.float32, torch.float32)
    with pytest.raises(ValueError, match="sources of 2 elements"):
        Reduce((A, B.part(0, 4)), A, torch.float32, torch.float32)
    with pytest.raises(ValueError, match="expected a part inside"):
        A.part(4, 8)
    with pytest.raises(ValueError, match="offset and nbytes >= 0"):
        Region("a", 0, -4, 8)
    with pytest.raises(ValueError, match="credit >= 0"):
        Wait(1, "c", credit=-1)


def test_compile_refuses_what_the_transport_does_not_have():
    transport = Loopback(2).transports[0]
    transport.arena("in", 16)
    with pytest.raises(ValueError, match=r"expected one of the arenas in, got sum\[0\]"):
        transport.compile(scatter())
    with pytest.raises(ValueError, match="expected world 2 like the transport, got 1"):
        transport.compile(Schedule("s", 1, {}))
    with pytest.raises(ValueError, match="inside the 16 bytes of arena 'in'"):
        transport.compile(scatter(accumulators=[Region("in", rank, 16, 8) for rank in range(2)]))
    program = transport.compile(Schedule("s", 2, {"p": ((), ())}))
    with pytest.raises(ValueError, match="expected one of the phases p, got 'q'"):
        program.run("q")


def test_a_wait_that_nobody_signals_is_refused():
    transport = Loopback(2).transports[0]
    with pytest.raises(ValueError, match="rank 0 waits for channel 'c' of rank 1, which never"):
        transport.compile(Schedule("s", 2, {"p": ((Wait(1, "c"),), ())}))
