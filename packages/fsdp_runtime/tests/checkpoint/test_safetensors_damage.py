"""Headers that the safetensors format forbids: an error that names file and tensor."""

import json

import pytest
from packages.fsdp_runtime.tests.checkpoint.cut_model import CutModel, StoreTransport

from sshsdp_fsdp_runtime.checkpoint import CheckpointError, load_safetensors

SHAPES = {"first": (16, 8), "second": (4,), "none": (0, 3)}  # 512, 16 and 0 bytes
GOOD = {
    "first": {"dtype": "F32", "shape": [16, 8], "data_offsets": [0, 512]},
    "second": {"dtype": "F32", "shape": [4], "data_offsets": [512, 528]},
    "none": {"dtype": "F32", "shape": [0, 3], "data_offsets": [512, 512]},
}


def write(path, header, data=bytes(528)):
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def refusal(path):
    model = CutModel(StoreTransport(0, 1), shapes=SHAPES, filled=False)
    with pytest.raises(CheckpointError) as error:
        load_safetensors(path, model)
    assert all(entry.tensor.isnan().all() for entry in model.entries)
    return str(error.value)


def test_the_undamaged_header_is_loaded(tmp_path):
    write(tmp_path / "x.safetensors", GOOD)
    model = CutModel(StoreTransport(0, 1), shapes=SHAPES, filled=False)
    load_safetensors(tmp_path / "x.safetensors", model)
    assert not model.entries[0].tensor.any()


@pytest.mark.parametrize(
    ("tensor", "change", "message"),
    [
        ("first", {"data_offsets": [-4, 508]}, "[-4, 508] for 512 bytes"),
        ("first", {"data_offsets": [0, 100]}, "[0, 100] for 512 bytes"),
        ("first", {"data_offsets": [512, 0]}, "[512, 0] for 512 bytes"),
        ("first", {"data_offsets": [0]}, "[0] for 512 bytes"),
        ("first", {"data_offsets": [0, 512, 512]}, "[0, 512, 512] for 512 bytes"),
        ("first", {"data_offsets": [0.0, 512]}, "[0.0, 512] for 512 bytes"),
        ("first", {"data_offsets": None}, "None for 512 bytes"),
        ("second", {"data_offsets": [256, 272]}, "byte 256 of the data, where 0 was free"),
        ("second", {"data_offsets": [500, 516]}, "it overlaps the one before"),
        ("second", {"data_offsets": [516, 532]}, "it leaves a hole before it"),
        ("first", {"shape": [16, 8.0]}, "shape [16, 8.0]"),
        ("first", {"shape": [-16, -8]}, "shape [-16, -8]"),
        ("first", {"shape": "abc"}, "shape 'abc'"),
        ("first", {"dtype": "F4"}, "dtype 'F4'"),
        ("first", {"dtype": ["F32"]}, "TypeError"),
    ],
)
def test_an_entry_that_the_format_forbids_is_named(tmp_path, tensor, change, message):
    header = {name: dict(row) for name, row in GOOD.items()}
    header[tensor] |= change
    if "256" in message:
        del header["first"]
        tensor = "none"
        header["none"]["data_offsets"] = [256, 256]
    write(tmp_path / "x.safetensors", header)
    text = refusal(tmp_path / "x.safetensors")
    assert message in text
    assert str(tmp_path / "x.safetensors") in text
    assert repr(tensor) in text


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (GOOD, bytes(527), "the file is cut off"),
        (GOOD, bytes(530), "the last 2 belong to no tensor"),
        ([1], b"", "no JSON object"),
        ({"first": 3}, b"", "for 'first' in"),
        ({"first": {"dtype": "F32"}}, b"", "for 'first' in"),
    ],
)
def test_a_file_that_its_header_does_not_describe_is_refused(tmp_path, header, data, message):
    write(tmp_path / "x.safetensors", header, data)
    assert message in refusal(tmp_path / "x.safetensors")


@pytest.mark.parametrize("file", ["../outside.safetensors", "/outside", "..", "", "sub/x", 3])
def test_an_index_does_not_lead_out_of_its_folder(tmp_path, file):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "sub").mkdir()
    write(tmp_path / "outside.safetensors", GOOD)
    write(folder / "sub" / "x", GOOD)
    index = {"weight_map": {"first": file, "second": file, "none": file}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    text = refusal(folder)
    assert f"{file!r} for 'first', which is no file of this folder" in text
    assert str(folder / "model.safetensors.index.json") in text
