"""The command `sshsdp`."""

import argparse
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Annotated, NoReturn

import tyro

from sshsdp_fsdp_runtime.trainer.config import TrainConfig
from sshsdp_fsdp_runtime.trainer.configfile import read_config
from sshsdp_fsdp_runtime.trainer.console import complain, say
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.inspection import compare, inspect
from sshsdp_fsdp_runtime.trainer.launch import RanksError, run_forked
from sshsdp_fsdp_runtime.trainer.outcome import Outcome
from sshsdp_fsdp_runtime.trainer.planning import plan
from sshsdp_fsdp_runtime.trainer.prepare import prepare_run, prepare_together
from sshsdp_fsdp_runtime.trainer.rank import train_rank
from sshsdp_fsdp_runtime.trainer.resumption import check_resumable
from sshsdp_fsdp_runtime.trainer.runfolder import open_run_folder
from sshsdp_fsdp_runtime.trainer.seat import resolve_ranks, torchrun_seat, torchrun_world
from sshsdp_fsdp_runtime.trainer.session import OpenSession, ShardedSession
from sshsdp_fsdp_runtime.trainer.stop import SIGNALS, exit_status

_BAD_INPUT = 2


@dataclass(frozen=True, kw_only=True)
class TrainCommand:
    """Train a decoder language model, sharded over ranks.

    Values come from the defaults, then the TOML file, then the options.
    """

    config: Path | None = None
    """TOML file: a key per option, a table per group."""
    resume: Path | None = None
    """Folder of a run to continue from its newest complete checkpoint. The number of ranks, the
    steps and what is reported may change; data, model and optimizer may not."""
    run: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)


class _InterruptedError(BaseException):
    def __init__(self, signum: int) -> None:
        self.signum = signum


def main(argv: Sequence[str] | None = None) -> int:
    """Run `sshsdp` with `argv` (default: of the process); the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] in (["-h"], ["--help"]) or not arguments:
        say(_usage())
        return 0 if arguments else _BAD_INPUT
    command = _COMMANDS.get(arguments[0])
    if command is None:
        complain(f"error: unknown command {arguments[0]!r}\n{_usage()}")
        return _BAD_INPUT
    try:
        with _interruptible():
            return command(arguments[1:])
    except _InterruptedError as interruption:
        say("interrupted")
        return exit_status(interruption.signum)
    except InputError as error:
        complain(f"error: {error}")
        return _BAD_INPUT
    except RanksError as error:
        complain(f"error: {error}")
        return 1


def entry() -> NoReturn:
    """The whole process: `main`, which takes signals, and an end that nothing interrupts.

    Tidying up takes Python and torch a while; a signal there would be a traceback, or change the
    status of a run that is over.
    """
    _ignore_signals()  # what `main` goes back to
    sys.exit(main())


def train(arguments: Sequence[str], open_session: OpenSession = ShardedSession) -> int:
    """`sshsdp train`; the exit status.

    Args:
        arguments: after the command's name.
        open_session: makes the model a sharded one.

    Raises:
        InputError: what the user can mend.
        RanksError: when a rank failed.
    """
    command = parse_train(arguments)
    started = torchrun_world()
    config = resolve_ranks(command.run, started)
    with contextlib.ExitStack() as held:
        if started is None:
            run = prepare_run(config, command.resume, held)
            outcome = run_forked(
                lambda seat: train_rank(run, seat, open_session), run.config.ranks or 1
            )
        else:
            seat = torchrun_seat()
            run = prepare_together(config, command.resume, seat, held)
            outcome = train_rank(run, seat, open_session)
            if seat.rank != 0:
                return outcome.status
        return _finish(outcome)


def parse_train(arguments: Sequence[str]) -> TrainCommand:
    """The command with defaults, TOML file and options laid over each other.

    Raises:
        InputError: a bad TOML file, a run that can't be resumed, a change that a resumed run can't
            take, an option without a value.
    """
    _check_values(arguments)
    # The files give the defaults of the parser proper, so they are looked up first.
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", type=Path)
    first.add_argument("--resume", type=Path)
    files = first.parse_known_args(arguments)[0]
    if files.config is not None and files.resume is not None:
        raise InputError("expected --config or --resume, got both; a run has its own config.toml")
    saved = None
    defaults = TrainConfig()
    if files.config is not None:
        defaults = read_config(files.config, TrainConfig)
    elif files.resume is not None:
        saved = open_run_folder(files.resume)[0]
        defaults = saved if torchrun_world() is None else replace(saved, ranks=None)
    command = tyro.cli(
        TrainCommand,
        prog="sshsdp train",
        args=list(arguments),
        default=TrainCommand(config=files.config, resume=files.resume, run=defaults),
    )
    if saved is not None:
        check_resumable(saved, command.run)
    return command


def _check_values(arguments: Sequence[str]) -> None:
    """Refuse empty values: an empty path would be the current folder."""
    option = ""
    for argument in arguments:
        value = argument
        if argument.startswith("--"):
            option, _, value = argument.partition("=")
            value = value if "=" in argument else option
        if not value and option.replace("_", "-") != "--report.sample-prompt":
            raise InputError(
                f"expected a value for {option or 'an option'}, got an empty text; is a variable of"
                " the shell not set? The current folder is ."
            )


_COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = MappingProxyType(
    {"train": train, "plan": plan, "inspect": inspect, "compare": compare}
)


def _usage() -> str:
    lines = [f"usage: sshsdp {{{','.join(_COMMANDS)}}} [options]", ""]
    return "\n".join([*lines, *(f"sshsdp {name} --help: its options" for name in _COMMANDS)])


def _finish(outcome: Outcome) -> int:
    # What the last line says, the status says too.
    _ignore_signals()
    say(outcome.last_line())
    return outcome.status


def _ignore_signals() -> None:
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Outside the training loop, a signal ends the command at once, after its clean-up."""

    def interrupt(signum: int, frame: FrameType | None) -> NoReturn:
        del frame
        raise _InterruptedError(signum)

    before = {signum: signal.signal(signum, interrupt) for signum in SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
