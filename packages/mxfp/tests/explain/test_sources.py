"""Tensors out of files, and what a person is told about other files."""

import numpy as np
import pytest
import torch

from sshsdp_mxfp.explain.errors import UserError
from sshsdp_mxfp.explain.source import from_file, from_seed

safetensors = pytest.importorskip("safetensors.torch", reason="needs the extra explain")

MODEL = {
    "layers.0.q_proj.weight": torch.arange(64.0).view(2, 32),
    "layers.0.k_proj.weight": torch.arange(64.0).view(2, 32).bfloat16(),
    "step": torch.tensor(3),
}


@pytest.fixture
def model(tmp_path):
    safetensors.save_file(MODEL, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("dtype", [">f4", "<f8", "f2"])
def test_arrays_of_any_byte_order(tmp_path, dtype):
    array = np.arange(96).reshape(3, 32).astype(dtype)
    np.save(tmp_path / "x.npy", array)
    name, x = from_file(tmp_path / "x.npy", None)
    assert name == "x.npy"
    assert x.tolist() == array.tolist()


def test_arrays_are_mapped_and_files_stay_as_they_are(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((4, 32), order="F"))
    before = (tmp_path / "x.npy").read_bytes()
    from_file(tmp_path / "x.npy", None)[1].zero_()
    assert (tmp_path / "x.npy").read_bytes() == before


@pytest.mark.parametrize("name", ["layers.0.q_proj.weight", "layers.0.k_proj.weight"])
def test_a_tensor_by_name(model, name):
    title, x = from_file(model, name)
    assert title == f"model.safetensors: {name}"
    assert torch.equal(x, MODEL[name])


def test_the_only_tensor_needs_no_name(tmp_path):
    safetensors.save_file({"w": torch.ones(2, 32)}, tmp_path / "one.safetensors")
    assert from_file(tmp_path / "one.safetensors", None)[0] == "one.safetensors: w"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (None, "expected --tensor NAME for .*, which holds 3 tensors: layers.0.k_proj.weight, "),
        ("layers.0.q.weight", "such as layers.0.q_proj.weight.*; got 'layers.0.q.weight'"),
        ("k_proj", "such as layers.0.k_proj.weight; got 'k_proj'"),
        ("step", "expected step to be of float32, .*got torch.int64"),
    ],
)
def test_names_that_help(model, name, message):
    with pytest.raises(UserError, match=message):
        from_file(model, name)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.arange(32), "expected x.npy to be of float32, float64, bfloat16, float16, got"),
        (np.array(1.0), r"expected x.npy to have elements in rows, got shape \[\]"),
        (np.zeros((0, 32)), r"got shape \[0, 32\]"),
        (np.array(["a"]), "expected an array of floats in"),
        (np.array([{}], dtype=object), "expected an array of floats in"),
    ],
)
def test_arrays_that_hold_no_floats(tmp_path, array, message):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(UserError, match=message):
        from_file(tmp_path / "x.npy", None)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"no such thing" * 9])
def test_files_of_something_else(tmp_path, suffix, content):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"expected (an array of floats|tensors) in .*, got: "):
        from_file(path, None)


def test_no_file_and_no_suffix(tmp_path):
    with pytest.raises(UserError, match=r"expected a file of \.safetensors or \.npy, got .*x\.pt"):
        from_file(tmp_path / "x.pt", None)
    with pytest.raises(UserError, match=r"expected a file, got .*x\.npy, which is none"):
        from_file(tmp_path / "x.npy", None)
    np.save(tmp_path / "x.npy", np.ones(32))
    with pytest.raises(UserError, match=r"expected no --tensor for a \.npy file"):
        from_file(tmp_path / "x.npy", "x")


def test_seeds_give_the_same_tensor_again():
    kinds = [from_seed(kind, "64x64", 3) for kind in ("normal", "rows", "outliers")]
    assert all(x.shape == (64, 64) for x in kinds)
    assert torch.equal(kinds[1], from_seed("rows", "64x64", 3))
    assert not torch.equal(kinds[0], from_seed("normal", "64x64", 4))
    assert len({float(x.abs().max()) for x in kinds}) == 3


@pytest.mark.parametrize("shape", ["", "8x", "0x4", "axb", "-1"])
def test_shapes_that_are_none(shape):
    with pytest.raises(UserError, match="expected a --shape of positive sizes as in 1024x1024"):
        from_seed("normal", shape, 0)


def test_kinds_of_random_numbers_are_listed():
    with pytest.raises(
        UserError, match=r"of normal, rows, outliers, got 'cauchy'; sizes go to --shape"
    ):
        from_seed("cauchy", "8x8", 0)
