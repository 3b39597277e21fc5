"""Prepare: everything that is done once, before there are ranks, so that bad input fails early."""

import json
import shutil
from pathlib import Path

from .config import TrainConfig
from .configfile import format_config
from .corpus import build_corpus, open_corpus
from .errors import InputError
from .rank import Run
from .runfolder import RunFolder, make_run_folder
from .seat import Seat
from .tensorboard import require_tensorboard

_KEY = "sshsdp/run"


def prepare_run(config: TrainConfig, resume: Path | None) -> Run:
    """A run folder with its configuration and token files, checked as far as one process can.

    Args:
        config: with its number of ranks settled.
        resume: folder of the run to continue; None: a new one.

    Raises:
        InputError: data, sizes or options that the run could not work with.
    """
    if config.report.tensorboard:
        require_tensorboard()
    folder = RunFolder(resume) if resume is not None else None
    if folder is None:
        config, folder = make_run_folder(config)
        try:
            build_corpus(folder.data, config.data, config.corpus)
            _check(config, folder)
        except BaseException:
            # Nothing was trained, and the name stays free.
            shutil.rmtree(folder.path)
            raise
    else:
        _check(config, folder)
    folder.save_config(config)
    print(format_config(config), flush=True)
    return Run(config, folder, resume=resume is not None)


def prepare_together(config: TrainConfig, resume: Path | None, seat: Seat) -> Run:
    """`prepare_run` on rank 0, its result on all ranks that somebody else started. Collective.

    Raises:
        InputError: the same on every rank.
    """
    if seat.store is None:
        return prepare_run(config, resume)
    if seat.rank == 0:
        try:
            run = prepare_run(config, resume)
        except InputError as error:
            seat.store.set(_KEY, json.dumps({"error": str(error)}))
            raise
        seat.store.set(_KEY, json.dumps({"folder": str(run.folder.path)}))
        return run
    answer = json.loads(seat.store.get(_KEY))
    if "error" in answer:
        raise InputError(answer["error"])
    return Run(config, RunFolder(Path(answer["folder"])), resume=resume is not None)


def _check(config: TrainConfig, folder: RunFolder) -> None:
    corpus = open_corpus(folder.data)
    corpus.check(context=config.context, batch=config.batch)
    config.model.shape(vocab=corpus.facts.vocab, context=config.context)
