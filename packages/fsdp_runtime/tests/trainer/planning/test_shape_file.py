"""A file of names and shapes describes a model as its own code would."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sshsdp_fsdp_runtime import ModelSpec
from sshsdp_fsdp_runtime.trainer import Decoder, DecoderShape, InputError
from sshsdp_fsdp_runtime.trainer.planning import parse_shapes, read_shape_file
from sshsdp_fsdp_runtime.trainer.planning.repeats import split_name

SHAPE = DecoderShape(vocab=256, context=64, width=64, layers=11, heads=4, kv_heads=2, hidden=160)
DECODER = """
[sizes]
width = 64
layers = 11
kv = 32
[parameters]
"embed.weight" = [256, "width"]
"layers.{layers}.attention_norm.weight" = ["width"]
"layers.{layers}.attention.q_proj.weight" = ["width", "2 * kv"]
"layers.{layers}.attention.k_proj.weight" = ["kv", "width"]
"layers.{layers}.attention.v_proj.weight" = ["kv", "width"]
"layers.{layers}.attention.o_proj.weight" = ["width", "width"]
"layers.{layers}.mlp_norm.weight" = ["width"]
"layers.{1:layers}.mlp.gate_proj.weight" = [160, "width"]
"layers.0.mlp.gate_proj.weight" = [160, "width"]
"layers.{layers}.mlp.up_proj.weight" = [160, "width"]
"layers.{layers}.mlp.down_proj.weight" = ["width", 160]
"norm.weight" = ["width"]
"head.weight" = [256, "width"]
[buffers]
"layers.{layers}.attention.rotary.cos" = [64, 8]
"layers.{layers}.attention.rotary.sin" = [64, 8]
"""


def test_a_file_gives_what_the_model_itself_gives(tmp_path):
    file = tmp_path / "decoder.toml"
    file.write_text(DECODER)
    ours, theirs = read_shape_file(file), ModelSpec.of(Decoder(SHAPE))
    assert ours.parameters == theirs.parameters
    assert ours.buffers == theirs.buffers
    assert ours.lists == theirs.lists
    assert set(ours.modules) == set(theirs.modules)


def test_dtypes_frozen_and_tied_parameters():
    spec = parse_shapes(
        {
            "dtype": "bf16",
            "parameters": {
                "embed.weight": [8, 4],
                "router.{2}": {"shape": [4], "dtype": "float32", "frozen": True},
                "head.weight": {"tied": "embed.weight"},
                "scalar": [],
            },
        }
    )
    scalar, tied, first, second = spec.parameters
    assert (scalar.shape, scalar.dtype, scalar.numel) == ((), torch.bfloat16, 1)
    assert tied.aliases == ("embed.weight", "head.weight")
    assert (first.name, first.dtype, first.trainable) == ("router.0", torch.float32, False)
    assert second.name == "router.1"
    assert spec.modules == ("embed", "router", "head")


def test_only_one_of_many_repeated_names_is_tied():
    spec = parse_shapes({"parameters": {"a.{3}.w": [2], "head.w": {"tied": "a.1.w"}}})
    assert [p.aliases for p in spec.parameters] == [("a.0.w",), ("a.1.w", "head.w"), ("a.2.w",)]


def test_elements_of_lists_come_in_numeric_order_whoever_names_them_first():
    spec = parse_shapes({"parameters": {"a.{9:12}.x": [1], "a.{12}.y": [1], "a.2.x": [1]}})
    assert spec.modules == ("a", *(f"a.{index}" for index in range(12)))
    assert spec.lists == ("a",)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(1, 5))
def test_braces_name_every_index_once(indices, count):
    text = ",".join(map(str, indices)) + f",{indices[0]}:{indices[0] + count}"
    names = [".".join(parts) for parts in product(*split_name(f"a.{{{text}}}.w", {}))]
    expected = sorted({*indices, *range(indices[0], indices[0] + count)})
    assert names == [f"a.{index}.w" for index in expected]


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"parameter": {}}, "expected the keys dtype, sizes, parameters, buffers, got 'parameter'"),
        ({"parameters": 3}, r"expected a table \[parameters\], got parameters = 3"),
        ({"dtype": "float3"}, "expected the name of a dtype, got 'float3'"),
        ({"sizes": {"n": 0}}, "expected sizes.n as a positive integer, got 0"),
        ({"parameters": {"a": 3}}, "'a': expected a shape as a list, got 3"),
        ({"parameters": {"a": ["breadth"]}}, "sizes .known: none. .* got 'breadth'"),
        ({"parameters": {"a": [-1]}}, "got -1"),
        ({"parameters": {"a": {"weight": [3]}}}, "got 'weight'; quote names with dots"),
        ({"parameters": {"a.{n}.w": [1]}}, "in the braces of 'a.{n}.w', got 'n'"),
        ({"parameters": {"a.{2000000}.w": [1]}}, "numbers up to 1,000,000 in the braces of"),
        ({"parameters": {"a.{0:10000000000000}": [1]}}, "got 10,000,000,000,000"),
        ({"sizes": {"n": 10**15}, "parameters": {"a.{n}": [1]}}, "up to 1,000,000 .*got 1,000,000"),
        ({"parameters": {"a.{2000}.{501}": [1]}}, "at most 1,000,000 names .*got 1,002,000"),
        ({"parameters": {"a.{3:3}.w": [1]}}, "at least one index in {3:3}"),
        ({"parameters": {"a.*.w": [1]}}, r"got '\*'; write .48. for the indices 0 to 47"),
        ({"parameters": {"a.{2}.w": [1], "a.1.w": [1]}}, "got 'a.1.w' again"),
        ({"parameters": {"a": [1], "a.w": [1]}}, "got 'a' as a module, which is a tensor"),
        ({"parameters": {"a.w": [1], "a": [1]}}, "got 'a' as a tensor, which is a module"),
        ({"parameters": {"b": {"tied": "a"}}}, "a parameter of the file, got 'a'"),
        ({"parameters": {"a": [1], "b.{2}": {"tied": "a"}}}, "one name that is tied, got several"),
        ({"parameters": {"a": [1], "b": {"tied": "a", "shape": [1]}}}, "and nothing else"),
        ({"parameters": {"a": {"shape": [1], "frozen": 1}}}, "true or false, got 1"),
        ({"buffers": {"a": {"shape": [1], "frozen": True}}}, "expected shape, dtype, got 'frozen'"),
    ],
)
def test_a_bad_file_is_refused_by_entry_and_remedy(table, text):
    with pytest.raises(InputError, match=text):
        parse_shapes(table)


def test_a_missing_or_malformed_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"absent.toml, which does not exist"):
        read_shape_file(tmp_path / "absent.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("[parameters]\na = ")
    with pytest.raises(InputError, match=r"bad.toml: Invalid value"):
        read_shape_file(bad)
