"""Prepare: everything that is done once, before there are ranks, so that bad input fails early."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from torch.distributed import Store  # type: ignore[attr-defined]

from sshsdp_fsdp_runtime.trainer.config import TrainConfig
from sshsdp_fsdp_runtime.trainer.configfile import format_config
from sshsdp_fsdp_runtime.trainer.console import say
from sshsdp_fsdp_runtime.trainer.corpus import build_corpus, open_corpus
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.model import DecoderShape
from sshsdp_fsdp_runtime.trainer.progress import GIB
from sshsdp_fsdp_runtime.trainer.rank import Run
from sshsdp_fsdp_runtime.trainer.run_lock import locked
from sshsdp_fsdp_runtime.trainer.runfolder import RunFolder, make_run_folder
from sshsdp_fsdp_runtime.trainer.seat import Seat
from sshsdp_fsdp_runtime.trainer.tensorboard import require_tensorboard

_KEY = "sshsdp/run"
_READERS_TIMEOUT = timedelta(seconds=30)


def prepare_run(config: TrainConfig, resume: Path | None, held: contextlib.ExitStack) -> Run:
    """A run folder with its configuration and token files, checked as far as one process can.

    Args:
        config: with its number of ranks settled.
        resume: folder of the run to continue; None: a new one.
        held: gets the lock of the run folder; to be closed when nobody writes there any more.

    Raises:
        InputError: data, sizes or options that the run could not work with.
    """
    if config.report.tensorboard:
        require_tensorboard()
    folder = RunFolder(resume) if resume is not None else None
    if folder is None:
        config, folder = make_run_folder(config, held)
        try:
            with _writable(folder.path):
                build_corpus(folder.data, config.data, config.corpus)
                _check(config, folder)
                folder.save_config(config)
        except BaseException:
            # Nothing was trained, and the name stays free.
            shutil.rmtree(folder.path)
            raise
    else:
        held.enter_context(locked(folder.path))
        _check(config, folder)
        _check_steps(config, folder)
        with _writable(folder.path):
            folder.discard_unfinished()
            folder.save_config(config)
    say(format_config(config))
    return Run(config, folder, resume=resume is not None)


def prepare_together(
    config: TrainConfig, resume: Path | None, seat: Seat, held: contextlib.ExitStack
) -> Run:
    """`prepare_run` on rank 0, its result on all ranks that somebody else started. Collective.

    Raises:
        InputError: the same on every rank.
    """
    if seat.store is None:
        return prepare_run(config, resume, held)
    if seat.rank == 0:
        try:
            run = prepare_run(config, resume, held)
        except InputError as error:
            seat.store.set(_KEY, json.dumps({"error": str(error)}))
            _wait_for_readers(seat.store, seat.world)
            raise
        seat.store.set(_KEY, json.dumps({"folder": str(run.folder.path)}))
        return run
    answer = json.loads(seat.store.get(_KEY))
    seat.store.set(f"{_KEY}/{seat.rank}", "read")
    if "error" in answer:
        raise InputError(answer["error"])
    return Run(config, RunFolder(Path(answer["folder"])), resume=resume is not None)


@contextlib.contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"expected a folder with room to write to, got {folder}: {error}; free some, or choose "
            f"another one"
        ) from error


def _wait_for_readers(store: Store, world: int) -> None:
    # This process may be the one that serves the store, and is about to end.
    with contextlib.suppress(RuntimeError):
        store.wait([f"{_KEY}/{rank}" for rank in range(1, world)], _READERS_TIMEOUT)


def _check(config: TrainConfig, folder: RunFolder) -> None:
    corpus = open_corpus(folder.data)
    corpus.check(context=config.context, batch=config.batch)
    _check_memory(config.model.shape(vocab=corpus.facts.vocab, context=config.context))


def _check_memory(shape: DecoderShape) -> None:
    """Refuse what would only end in the kernel's killing a rank: each constructs the model."""
    needed = 4 * shape.parameters
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise InputError(
            f"[model] expected weights that fit into {memory / GIB:.1f} GiB of memory, got"
            f" {shape.parameters:,} in FP32, {needed / GIB:.1f} GiB; choose smaller sizes"
        )


def _check_steps(config: TrainConfig, folder: RunFolder) -> None:
    done = folder.steps_done()
    if config.steps <= done:
        raise InputError(
            f"expected more steps than the {done} that {folder.path} has done, got"
            f" {config.steps}; give a larger --steps"
        )
