"""One rank's part of a run, from the model's construction to the outcome."""

import contextlib
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from sshsdp_fsdp_runtime.trainer.batches import TrainBatches
from sshsdp_fsdp_runtime.trainer.config import TrainConfig
from sshsdp_fsdp_runtime.trainer.console import say
from sshsdp_fsdp_runtime.trainer.corpus import Corpus, open_corpus
from sshsdp_fsdp_runtime.trainer.evaluation import Evaluation
from sshsdp_fsdp_runtime.trainer.loop import Loop
from sshsdp_fsdp_runtime.trainer.memory import MemoryWatch
from sshsdp_fsdp_runtime.trainer.metrics import Metrics
from sshsdp_fsdp_runtime.trainer.model import Decoder
from sshsdp_fsdp_runtime.trainer.order import Order
from sshsdp_fsdp_runtime.trainer.outcome import Outcome
from sshsdp_fsdp_runtime.trainer.plot import NoPlotError, write_plot
from sshsdp_fsdp_runtime.trainer.progress import GIB, make_progress
from sshsdp_fsdp_runtime.trainer.reports import Audience, Listener
from sshsdp_fsdp_runtime.trainer.runfolder import RunFolder
from sshsdp_fsdp_runtime.trainer.sample import NoSampleError, generate, printable
from sshsdp_fsdp_runtime.trainer.schedule import make_scheduler, restore_scheduler
from sshsdp_fsdp_runtime.trainer.seat import Seat
from sshsdp_fsdp_runtime.trainer.session import OpenSession, Session
from sshsdp_fsdp_runtime.trainer.tensorboard import TensorBoard
from sshsdp_fsdp_runtime.trainer.tracing import Tracing

_PROMPT_TOKENS = 32


@dataclass(frozen=True)
class Run:
    """What every rank is told.

    Attributes:
        config: resolved.
        folder: exists, with the corpus inside.
        resume: continue from the newest complete checkpoint.
    """

    config: TrainConfig
    folder: RunFolder
    resume: bool = False


def train_rank(run: Run, seat: Seat, open_session: OpenSession) -> Outcome:
    """Train as rank `seat.rank`. Collective: every rank calls it with an equal run.

    Raises:
        InputError: sizes that don't fit together, or a checkpoint of another model.
    """
    config, corpus = run.config, open_corpus(run.folder.data)
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    shape = config.model.shape(vocab=corpus.facts.vocab, context=config.context)
    model = Decoder(shape, seed=config.seed)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    with _closed(open_session(model, config, seat)) as session:
        rank = _RankRun(run, seat, session, corpus)
        if seat.rank == 0:
            rank.introduce(parameters)
        return rank.train()


class _RankRun:
    def __init__(self, run: Run, seat: Seat, session: Session, corpus: Corpus) -> None:
        self._run, self._config, self._folder = run, run.config, run.folder
        self._seat, self._session, self._corpus = seat, session, corpus
        self._watch = MemoryWatch()
        self._stragglers = session.watch_stragglers()
        self._scheduler = make_scheduler(session.optimizer, run.config.steps, run.config.optimizer)

    def introduce(self, parameters: int) -> None:
        config = self._config
        planned = self._session.planned_bytes()
        forecast = "" if planned is None else f"; planned buffers {planned / GIB:.3f} GiB"
        say(f"data: {self._corpus.facts.describe()}")
        say(
            f"model: {parameters:,} parameters, FP32 (the default on CPUs);"
            f" {config.batch * config.context:,} tokens per step;"
            f" ranks: {self._seat.world}{forecast}",
        )

    def train(self) -> Outcome:
        start = self._restore() if self._run.resume else 0
        window = self._config.trace_window
        if window is not None and window.first <= start and self._seat.rank == 0:
            say(f"trace: step {window.first} was done before; nothing is recorded")
        audience = Audience(self._listeners(start) if self._seat.rank == 0 else ())
        try:
            result = self._loop(audience, start).run()
        finally:
            audience.close()
        if not result.signum:
            self._sample()
        if self._config.debug.stragglers:
            report = self._stragglers.report()
            if self._seat.rank == 0:
                say(report.describe())
        if self._seat.rank == 0:
            self._plot()
        return Outcome(
            steps=result.steps,
            val_loss=result.val_loss,
            tokens_per_s=result.tokens_per_s,
            peak_pss_bytes=self._sum_over_ranks(self._watch.peak_pss),
            run=self._folder.path,
            signum=result.signum,
        )

    def _loop(self, audience: Audience, start: int) -> Loop:
        config, corpus, seat = self._config, self._corpus, self._seat
        order = Order(config.seed, len(corpus.train), config.context, config.batch)
        return Loop(
            self._session,
            config,
            batches=TrainBatches(
                corpus.train,
                order,
                rank=seat.rank,
                world=seat.world,
                microbatch=config.microbatch,
            ),
            evaluation=Evaluation(
                corpus.validation,
                context=config.context,
                windows=config.report.validation_windows,
                microbatch=config.microbatch,
                rank=seat.rank,
                world=seat.world,
            ),
            scheduler=self._scheduler,
            audience=audience,
            watch=self._watch,
            stragglers=self._stragglers,
            tracing=Tracing(self._session, config.trace_window, self._folder, seat),
            stop=seat.stop,
            save=self._save,
            start=start,
        )

    def _listeners(self, start: int) -> list[Listener]:
        config = self._config
        listeners: list[Listener] = [Metrics(self._folder.metrics, start=start)]
        if config.report.tensorboard:
            listeners.append(TensorBoard(self._folder.tensorboard))
        progress = make_progress(
            sys.stdout,
            steps=config.steps,
            tokens_per_step=config.batch * config.context,
            every=config.report.log_every,
            planned_bytes=self._session.planned_bytes(),
        )
        return [*listeners, progress]

    def _save(self, step: int) -> None:
        if self._seat.rank == 0:
            self._folder.remove_checkpoint(step)
        self._session.save(
            self._folder.checkpoint(step),
            {
                "step": step,
                "scheduler": self._scheduler.state_dict(),
                "per_rank": {"rng": torch.get_rng_state()},
            },
        )
        if self._seat.rank == 0:
            self._folder.keep_newest(self._config.report.keep_checkpoints)

    def _restore(self) -> int:
        extra = self._session.load(self._folder.newest_checkpoint())
        restore_scheduler(
            self._scheduler, extra["scheduler"], self._config.steps, self._config.optimizer
        )
        # A rank that was not there before keeps the state that the seed gave it.
        if extra["per_rank"] is not None:
            torch.set_rng_state(extra["per_rank"]["rng"])
        return int(extra["step"])

    def _sample(self) -> None:
        report, tokenizer = self._config.report, self._corpus.tokenizer
        if report.sample_tokens == 0:
            return
        if report.sample_prompt and tokenizer is not None:
            prompt = tokenizer.encode(report.sample_prompt.encode()).tolist()
        else:
            prompt = self._corpus.validation[:_PROMPT_TOKENS].tolist()
        try:
            tokens = generate(
                self._session.model,
                prompt,
                count=report.sample_tokens,
                context=self._config.context,
                temperature=report.sample_temperature,
                seed=self._config.seed,
            )
        except NoSampleError as error:  # on every rank: outputs are equal
            if self._seat.rank == 0:
                say(str(error))
            return
        if self._seat.rank == 0:
            both = prompt + tokens
            text = " ".join(map(str, both)) if tokenizer is None else tokenizer.decode(both)
            self._folder.sample.write_text(text + "\n", encoding="utf-8")
            say(f"sample ({self._folder.sample}):\n{printable(text, sys.stdout.encoding)}")

    def _plot(self) -> None:
        try:
            write_plot(self._folder.metrics, self._folder.plot)
        except NoPlotError as error:
            say(str(error))

    def _sum_over_ranks(self, value: int) -> int:
        parts = self._session.exchange(struct.pack("<q", value))
        return sum(struct.unpack("<q", part)[0] for part in parts)


@contextlib.contextmanager
def _closed(session: Session) -> Iterator[Session]:
    try:
        yield session
    except BaseException as error:
        session.abort(f"{type(error).__name__}: {error}")
        raise
    session.close()
