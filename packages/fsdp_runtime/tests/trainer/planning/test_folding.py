"""Folded names stand for exactly the names that were folded."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from sshsdp_fsdp_runtime.trainer.planning.folding import fold_names
from sshsdp_fsdp_runtime.trainer.planning.repeats import split_name

index = st.integers(0, 5)
names = st.lists(
    st.one_of(
        st.builds("layers.{}.w".format, index),
        st.builds("layers.{}.experts.{}.w".format, index, index),
        st.builds("{}.{}".format, index, index),
        st.sampled_from(["norm.weight", "head"]),
    ),
    max_size=60,
)


@given(names)
def test_patterns_expand_to_the_names_again_each_once(names):
    folds = fold_names(names)
    expanded = [".".join(p) for fold in folds for p in product(*split_name(fold.pattern, {}))]
    assert sorted(expanded) == sorted(set(names))
    assert sum(fold.count for fold in folds) == len(expanded)


def test_full_grids_are_one_pattern():
    grid = [f"layers.{i}.experts.{j}.w" for i in range(1, 4) for j in range(8)]
    (fold,) = fold_names(["norm.weight", *grid])[1:]
    assert (fold.pattern, fold.count) == ("layers.{1:4}.experts.{8}.w", 24)


def test_every_other_index_is_listed():
    (fold,) = fold_names([f"layers.{i}.k" for i in (0, 5, 11, 6)])
    assert fold.pattern == "layers.{0,5:7,11}.k"
    assert [f.pattern for f in fold_names(["a.7.b"])] == ["a.7.b"]


def test_order_is_that_of_first_appearance():
    assert [f.pattern for f in fold_names(["b.0", "a", "b.1"])] == ["b.{2}", "a"]
