"""Files are found in a fixed order, read as their names say, and refused with a reason."""

import json
from pathlib import Path

import numpy as np
import pytest

from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.sources import (
    Kind,
    Source,
    find_sources,
    read_texts,
    read_tokens,
    standard_library,
)


def test_the_standard_library_is_large_and_without_its_tests():
    paths = [source.path for source in standard_library()]
    assert {"argparse.py", "json", "email"} <= {part for path in paths for part in path.parts}
    root = Path(json.__file__).parents[1]
    parts = {part for path in paths for part in path.relative_to(root).parts}
    assert not parts & {"test", "tests", "site-packages", "__pycache__"}
    assert sum(path.stat().st_size for path in paths) > 5_000_000


def test_a_folder_gives_its_visible_texts_sorted(tmp_path):
    for name in ("b.txt", "a/z.md", "a/c.py", ".hidden", ".git/x"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("text")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "empty.txt").touch()
    names = [source.path.relative_to(tmp_path).as_posix() for source in find_sources([tmp_path])]
    assert names == ["a/c.py", "a/z.md", "b.txt"]


def test_a_jsonl_line_is_a_document(tmp_path):
    path = tmp_path / "documents.jsonl"
    path.write_text('{"text": "grün", "id": 1}\n\n{"text": "blau"}\n')
    (source,) = find_sources([path])
    assert list(read_texts(source)) == ["grün".encode(), b"blau"]


@pytest.mark.parametrize("line", ['{"txt": "a"}', '{"text": 3}', "no json", "[1]"])
def test_a_bad_jsonl_line_is_named(tmp_path, line):
    path = tmp_path / "documents.jsonl"
    path.write_text('{"text": "a"}\n' + line)
    with pytest.raises(InputError, match=r'under "text" at .*documents.jsonl:2'):
        list(read_texts(Source(path, Kind.JSONL)))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_token_arrays_keep_their_values(tmp_path, dtype):
    tokens = np.arange(200, dtype=dtype)
    np.save(tmp_path / "a.npy", tokens)
    tokens.tofile(tmp_path / "b.bin")
    npy, binary = find_sources([tmp_path])
    assert np.array_equal(read_tokens(npy, "uint8"), tokens)
    assert np.array_equal(read_tokens(binary, dtype), tokens)


def test_what_is_missing_or_empty_is_named(tmp_path):
    with pytest.raises(InputError, match=r"got .*absent, which does not exist"):
        find_sources([tmp_path / "absent"])
    with pytest.raises(InputError, match=r"with content in .*, got none"):
        find_sources([tmp_path])
    empty = tmp_path / "empty.txt"
    empty.touch()
    with pytest.raises(InputError, match=r"data in .*empty.txt, got an empty file"):
        find_sources([empty])


def test_what_is_neither_text_nor_tokens_is_refused(tmp_path):
    path = tmp_path / "picture.png"
    path.write_bytes(b"\x89PNG\0\0")
    with pytest.raises(InputError, match=r"picture.png as text, got bytes with NUL"):
        find_sources([path])


def test_text_and_tokens_together_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    np.save(tmp_path / "b.npy", np.arange(5, dtype=np.uint8))
    with pytest.raises(InputError, match=r"got both \(.*a.txt, .*b.npy\)"):
        find_sources([tmp_path])


def test_arrays_of_other_shapes_or_types_are_refused(tmp_path):
    for array, text in (
        (np.zeros((2, 3), np.uint8), "got 2-D uint8"),
        (np.zeros(3), "got 1-D float64"),
    ):
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(InputError, match=text):
            read_tokens(Source(tmp_path / "a.npy", Kind.NPY), "uint8")
    (tmp_path / "a.npy").write_bytes(b"not an array")
    with pytest.raises(InputError, match=r"a.npy as a .npy array, got: "):
        read_tokens(Source(tmp_path / "a.npy", Kind.NPY), "uint8")
    (tmp_path / "a.bin").write_bytes(b"123")
    with pytest.raises(InputError, match=r"got 3 bytes, which 2 does not divide"):
        read_tokens(Source(tmp_path / "a.bin", Kind.BIN), "uint16")
