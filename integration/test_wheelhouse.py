"""The check of built distributions notices what must not be shipped."""

import zipfile
from types import ModuleType

import pytest
from testing.public_face import problems
from testing.wheelhouse import check_wheel, main

NAME = "sshsdp_toy-0.1.0-py3-none-any.whl"
GOOD = (
    "sshsdp_toy/__init__.py",
    "sshsdp_toy/py.typed",
    "sshsdp_toy-0.1.0.dist-info/METADATA",
    "sshsdp_toy-0.1.0.dist-info/licenses/LICENSE",
)


def wheel(folder, files, name=NAME):
    with zipfile.ZipFile(folder / name, "w") as archive:
        for file in files:
            archive.writestr(file, "")
    return folder / name


def test_a_typed_pure_licensed_wheel_passes(tmp_path):
    assert check_wheel(wheel(tmp_path, GOOD)) == []


@pytest.mark.parametrize("missing", ["sshsdp_toy/py.typed", GOOD[3]])
def test_a_missing_file_is_named(tmp_path, missing):
    problems = check_wheel(wheel(tmp_path, [file for file in GOOD if file != missing]))
    assert len(problems) == 1
    assert missing.split("/")[-1] in problems[0]


@pytest.mark.parametrize(
    "surplus", ["sshsdp_toy/fast.so", "tests/test_x.py", "sshsdp_toy/test_x.py"]
)
def test_a_surplus_file_is_named(tmp_path, surplus):
    problems = check_wheel(wheel(tmp_path, [*GOOD, surplus]))
    assert len(problems) == 1
    assert surplus in problems[0]


def test_a_wheel_for_one_platform_is_refused(tmp_path):
    assert check_wheel(wheel(tmp_path, GOOD, NAME.replace("any", "linux_x86_64")))


def test_an_empty_folder_is_an_error(tmp_path, capsys):
    assert main(tmp_path) == 1
    assert "as many wheels as sdists" in capsys.readouterr().err


def test_a_face_without_names_or_with_names_of_nothing_is_refused():
    face = ModuleType("toy")
    face.__file__ = "/venv/site-packages/toy/__init__.py"
    assert problems(face) == ["expected public names in __all__, got none"]
    face.__all__ = ["here", "gone"]
    face.here = 1
    assert problems(face) == ["expected gone of __all__, got no such name"]
    face.__file__ = "/elsewhere/toy/__init__.py"
    assert len(problems(face)) == 2
