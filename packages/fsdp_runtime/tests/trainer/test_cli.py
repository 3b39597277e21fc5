"""The command refuses what it can't work with before any rank starts, in one line."""

import os
import signal
import sys

import pytest
from packages.fsdp_runtime.tests.trainer.commands import small_run

from sshsdp_fsdp_runtime.trainer import main
from sshsdp_fsdp_runtime.trainer.cli import entry, parse_train
from sshsdp_fsdp_runtime.trainer.stop import SIGNALS


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--data", "/absent"], "got /absent, which does not exist"),
        (["--data", ""], "a value for --data, got an empty text; is a variable of the shell not"),
        (["--data", "a", ""], "expected a value for --data, got an empty text"),
        (["--data="], "expected a value for --data, got an empty text"),
        (
            ["--name", "../x"],
            "got '../x'; choose a name without .. and a leading /, and with --runs",
        ),
        (["--name", "a/../../x"], "name of a folder in "),
        (["--name", "/tmp/x"], "got '/tmp/x'; choose a name"),
        (["--name", "."], "got '.'; choose a name"),
        (["--name", "a\0b"], "; choose a name without .. and a leading /"),
        (["--ranks", "3"], "a batch that 3 ranks divide, got 4; use 3"),
        (["--context", "9000"], "training tokens for batch 4 and context 9000"),
        (["--model.size", "huge"], "a model size out of nano"),
        (["--model.layers", "1000000000"], "[model] expected layers <= 10,000, got 1,000,000,000"),
        (["--model.hidden", "1000000000000"], "GiB of memory, got 384,000,000,"),
        (["--ranks", "1", "--threads", "100000"], "got 100000; use as many as there are cores"),
        (["--config", "absent.toml"], "got absent.toml, which does not exist"),
        (["--resume", "."], "expected --config or --resume, got both"),
        (["--corpus.tokenizer", "absent.json"], "a tokenizer.json, got absent.json"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_run(tmp_path, capfd, options, text):
    assert main([*small_run(tmp_path), *options]) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert text in error
    assert not list((tmp_path / "runs").glob("*"))


def test_options_win_over_the_file_and_the_file_over_the_defaults(tmp_path):
    arguments = small_run(tmp_path)[1:]
    config = parse_train([*arguments, "--optimizer.lr", "0.5", "--data", "a", "b"]).run
    assert config.optimizer.lr == 0.5
    assert config.optimizer.warmup_steps == 2
    assert config.optimizer.weight_decay == 0.1
    assert [path.name for path in config.data] == ["a", "b"]


@pytest.mark.parametrize("name", ["sample-prompt", "sample_prompt"])
def test_the_prompt_may_be_empty(name):
    assert parse_train([f"--report.{name}", ""]).run.report.sample_prompt == ""


def test_a_taken_name_is_refused(tmp_path, capfd):
    (tmp_path / "runs/taken").mkdir(parents=True)
    assert main([*small_run(tmp_path), "--name", "taken"]) == 2
    assert "expected a new run name, got taken" in capfd.readouterr().err
    assert (tmp_path / "runs/taken").exists()


def test_what_is_not_a_run_cannot_be_resumed(tmp_path, capfd):
    assert main(["train", "--resume", str(tmp_path)]) == 2
    assert "which has no config.toml" in capfd.readouterr().err


def test_unknown_commands_and_options_are_named(capfd):
    assert main(["trian"]) == 2
    assert "unknown command 'trian'" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "--stepz", "3"])
    assert "--steps" in capfd.readouterr().err


def test_a_signal_after_the_command_does_not_change_how_it_ended(monkeypatch, capfd):
    """Python and torch tidy up for a while; `integration/failure` interrupts that."""
    monkeypatch.setattr(sys, "argv", ["sshsdp", "trian"])
    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    try:
        with pytest.raises(SystemExit) as caught:
            entry()
        for signum in SIGNALS:
            os.kill(os.getpid(), signum)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    assert caught.value.code == 2
    assert "unknown command" in capfd.readouterr().err
