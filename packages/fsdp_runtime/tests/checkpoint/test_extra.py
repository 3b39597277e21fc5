"""The caller's own values come back as they were, those of a rank to the rank of that number."""

import pytest
import torch
from packages.fsdp_runtime.tests.checkpoint.cut_model import CutModel, StoreTransport
from testing.ranks import run_ranks

from sshsdp_fsdp_runtime.checkpoint import CheckpointError, load_checkpoint, save_checkpoint


def single():
    return CutModel(StoreTransport(0, 1))


def test_nested_values_and_tensors_round_trip(tmp_path):
    extra = {
        "step": 12,
        "none": None,
        "best": float("inf"),
        "a/b~c.d": [{"flag": True, "x": torch.arange(5, dtype=torch.uint8)}, [torch.tensor(1.5)]],
        "a": {"b~c": {"d": torch.zeros(0, 3)}},
        "big": 2**80,
    }
    save_checkpoint(tmp_path / "a", single(), extra)
    loaded = load_checkpoint(tmp_path / "a", single())
    assert torch.equal(loaded["a/b~c.d"][0].pop("x"), torch.arange(5, dtype=torch.uint8))
    assert torch.equal(loaded["a/b~c.d"][1].pop(), torch.tensor(1.5))
    assert loaded["a"]["b~c"].pop("d").shape == (0, 3)
    assert loaded == {
        "step": 12,
        "none": None,
        "best": float("inf"),
        "a/b~c.d": [{"flag": True}, []],
        "a": {"b~c": {}},
        "big": 2**80,
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, r"got set at extra/x/0"),
        (b"x", r"got bytes at extra/x/0"),
        ({3: 4}, r"got dict at extra/x/0"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_place(tmp_path, value, message):
    with pytest.raises(CheckpointError, match=message):
        save_checkpoint(tmp_path / "a", single(), {"x": [value]})


def test_names_with_slashes_stay_apart(tmp_path):
    extra = {
        "a/b": {"c": torch.tensor(1)},
        "a": {"b/c": torch.tensor(2), "b": {"c": torch.ones(1)}},
    }
    save_checkpoint(tmp_path / "a", single(), extra)
    loaded = load_checkpoint(tmp_path / "a", single())
    assert (loaded["a/b"]["c"], loaded["a"]["b/c"], loaded["a"]["b"]["c"]) == (1, 2, 1)


def save_own(rank, path):
    torch.manual_seed(rank.rank)
    own = {"rng": torch.get_rng_state(), "seen": 10 * rank.rank}
    model = CutModel(StoreTransport(rank.rank, rank.world, rank.store))
    shared = {"order": 7, "tensors": list(torch.full((4, 1000), 3))}
    save_checkpoint(path, model, {**shared, "per_rank": own})
    return torch.rand(3).tolist()


def load_own(rank, path):
    extra = load_checkpoint(path, CutModel(StoreTransport(rank.rank, rank.world, rank.store)))
    assert extra["order"] == 7
    assert torch.stack(extra["tensors"]).equal(torch.full((4, 1000), 3))
    own = extra["per_rank"]
    if own is None:
        return None
    torch.set_rng_state(own["rng"])
    return own["seen"], torch.rand(3).tolist()


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_rank_gets_the_values_of_the_rank_of_its_number(tmp_path, world):
    drawn = run_ranks(save_own, 2, tmp_path / "a")
    loaded = run_ranks(load_own, world, tmp_path / "a")
    assert loaded[2:] == [None] * (world - 2)
    for rank, (seen, again) in enumerate(loaded[:2]):
        assert seen == 10 * rank
        assert again == drawn[rank]


def save_own_on_one(rank, path):
    model = CutModel(StoreTransport(rank.rank, rank.world, rank.store))
    with pytest.raises(CheckpointError, match=r"on all ranks or on none, got none on ranks \[1\]"):
        save_checkpoint(path, model, {"per_rank": 1} if rank.rank == 0 else {})


def test_per_rank_values_are_of_all_ranks_or_of_none(tmp_path):
    run_ranks(save_own_on_one, 2, tmp_path / "a")


NAN = float("nan")
ALIKE = [
    [{}, {}],
    [{"a": 1, "b": {"c": NAN, "d": [None]}}, {"b": {"d": (None,), "c": NAN}, "a": 1}],
    [{"x": torch.tensor([NAN, -1.0])}, {"x": torch.tensor([[NAN, 3.0], [-1.0, 3.0]])[:, 0]}],
    [
        {"x": torch.zeros(0, 3), "y": torch.tensor(1)},
        {"y": torch.tensor(1), "x": torch.zeros(0, 3)},
    ],
    [{"x": torch.tensor([1 - 2j]).conj()}, {"x": torch.tensor([1 + 2j])}],
    [{"per_rank": 1}, {"per_rank": torch.ones(2)}],
]
DIFFERENT = [
    ([{"a": 1, "b": 2}, {"a": 1, "b": 3}], "'b'.* got another one"),
    ([{"a": 1}, {}], "'a'.* got none"),
    ([{}, {"step": 3}], "'step'.* got one"),
    ([{"a": {"b": [1, 2]}}, {"a": {"b": [2, 1]}}], "'a'.* got another one"),
    ([{"a": [None]}, {"a": [torch.ones(1)]}], "'a'.* got another one"),
    (
        [{"a": torch.zeros(9)}, {"a": torch.zeros(9).index_fill(0, torch.tensor(8), 1)}],
        "'a'.* got another one",
    ),
    ([{"a": torch.zeros(2)}, {"a": torch.zeros(2, dtype=torch.int32)}], "'a'.* got another one"),
    ([{"a": torch.zeros(2, 3)}, {"a": torch.zeros(3, 2)}], "'a'.* got another one"),
    ([{"a": [torch.ones(1), None]}, {"a": [None, torch.ones(1)]}], "'a'.* got another one"),
]


def save_each(rank, root):
    model = CutModel(StoreTransport(rank.rank, rank.world, rank.store))
    for number, extras in enumerate(ALIKE):
        save_checkpoint(root / str(number), model, extras[rank.rank])
    for extras, text in DIFFERENT:
        text = rf"expected extra\[{text}; give all ranks one value, or put what each has of its own"
        with pytest.raises(CheckpointError, match=text):
            save_checkpoint(root / "different", model, extras[rank.rank])


def test_values_that_differ_between_ranks_are_refused_by_name(tmp_path):
    run_ranks(save_each, 2, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == list(map(str, range(len(ALIKE))))
