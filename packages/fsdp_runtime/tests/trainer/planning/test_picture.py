"""The picture shows the data tree and the shard chain of every kind of atom, at any scale."""

import sys

import pytest

from sshsdp_fsdp_runtime.trainer import InputError
from sshsdp_fsdp_runtime.trainer.planning import PlanRequest, make_plan
from sshsdp_fsdp_runtime.trainer.planning.picture import write_picture

pytest.importorskip("matplotlib")


def drawn(tmp_path, rank=0, **numbers):
    """The text of the picture of a small decoder's plan."""
    plan = make_plan(PlanRequest(model="nano", **numbers))
    path = tmp_path / "plan.svg"
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none"}):
        write_picture(plan, rank, path)
    return path.read_text()


def test_the_order_of_owners_is_that_of_the_buffer(tmp_path):
    # The paper's Figure 4: four ranks on two nodes, ZeRO-1 over four, the others over two.
    text = drawn(tmp_path, nodes=2, ranks_per_node=2, degrees="2,2,4", cast=("bf16",))
    after = text[text.index("ZeRO-1: main, state") :]
    owners = [after.index(f">{rank}</text>") for rank in (0, 2, 1, 3)]
    assert owners == sorted(owners)
    for words in ("w at ZeRO-3", "w at ZeRO-1", "main weight at ZeRO-1", "q_proj", "4 chunks"):
        assert words in text


def test_worlds_of_any_size_are_drawn(tmp_path):
    text = drawn(tmp_path, rank=70_000, nodes=16384, ranks_per_node=8, degrees="8,8,4096")
    assert "131,072 ranks on 16,384 node(s), rank 70000 highlighted" in text
    assert "4,096 chunks" in text


@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_the_suffix_says_the_format(tmp_path, suffix):
    path = tmp_path / f"plan.{suffix}"
    write_picture(make_plan(PlanRequest(model="nano", world=2)), 1, path)
    assert path.read_bytes()[:4] == {"png": b"\x89PNG", "pdf": b"%PDF"}[suffix]


def test_a_missing_package_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"pip install 'sshsdp-fsdp-runtime\[plots\]'"):
        write_picture(make_plan(PlanRequest(model="nano")), 0, tmp_path / "plan.png")
