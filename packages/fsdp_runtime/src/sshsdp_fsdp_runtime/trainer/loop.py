"""Loop: the training steps of one rank; plain PyTorch around a session."""

import math
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR

from sshsdp_fsdp_runtime.debug import StragglerWatch
from sshsdp_fsdp_runtime.trainer.batches import TrainBatches
from sshsdp_fsdp_runtime.trainer.config import TrainConfig
from sshsdp_fsdp_runtime.trainer.evaluation import Evaluation
from sshsdp_fsdp_runtime.trainer.experts import BALANCE
from sshsdp_fsdp_runtime.trainer.memory import MemoryWatch
from sshsdp_fsdp_runtime.trainer.reports import Audience, StepReport, ValidationReport
from sshsdp_fsdp_runtime.trainer.session import Session
from sshsdp_fsdp_runtime.trainer.stop import Stop
from sshsdp_fsdp_runtime.trainer.tracing import Tracing

_SHARED = struct.Struct("<diqqd")


@dataclass(frozen=True, slots=True)
class Shared:
    """What the ranks tell each other after every step, summed up.

    Attributes:
        loss: mean over ranks.
        signum: of the signal that asked any rank to end, or 0.
        rss: bytes, sum over ranks.
        pss: bytes, sum over ranks.
        bad_losses: ranks whose loss is not finite.
        waits: seconds that each rank waited for others in the step.
    """

    loss: float
    signum: int
    rss: int
    pss: int
    bad_losses: tuple[int, ...]
    waits: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LoopResult:
    """How the loop ended.

    Attributes:
        steps: done in total.
        val_loss: the latest one, nats per token; NaN when there was none.
        tokens_per_s: over this loop's training steps; evaluations and checkpoints left out.
        signum: of the signal that ended it early, or 0.
    """

    steps: int
    val_loss: float
    tokens_per_s: float
    signum: int


class Loop:
    """Trains from `start` to config.steps.

    Args:
        session: model, optimizer and the other ranks.
        config: of the run.
        batches: this rank's rows.
        evaluation: of the validation loss.
        scheduler: at step `start`.
        audience: gets the reports.
        watch: of this rank's memory.
        stragglers: times this rank's steps.
        tracing: of some steps.
        stop: asked after every step.
        save: called with the number of steps done when a checkpoint is due.
        start: steps done before.
    """

    def __init__(
        self,
        session: Session,
        config: TrainConfig,
        *,
        batches: TrainBatches,
        evaluation: Evaluation,
        scheduler: LambdaLR,
        audience: Audience,
        watch: MemoryWatch,
        stragglers: StragglerWatch,
        tracing: Tracing,
        stop: Stop,
        save: Callable[[int], None],
        start: int,
    ) -> None:
        self._session, self._config, self._batches = session, config, batches
        self._evaluation, self._scheduler, self._audience = evaluation, scheduler, audience
        self._watch, self._stop, self._save, self._start = watch, stop, save, start
        self._stragglers, self._tracing = stragglers, tracing

    def run(self) -> LoopResult:
        """All steps, or as many as until somebody asks to end. Collective."""
        with self._tracing:
            return self._run()

    def _run(self) -> LoopResult:
        report, config = self._config.report, self._config
        step, seconds, val_loss, signum = self._start, 0.0, math.nan, 0
        while step < config.steps and not signum:
            self._tracing.begin(step + 1)
            self._stragglers.begin()
            began = time.perf_counter()
            shared, norm, lr, nonfinite = self._step(step)
            took = time.perf_counter() - began
            step, seconds, signum = step + 1, seconds + took, shared.signum
            self._audience.step(self._report(step, shared, norm, lr, took, nonfinite))
            last = step == config.steps or bool(signum)
            if last or step % report.evaluate_every == 0:
                val_loss = self._evaluation.run(self._session)
                self._audience.validation(ValidationReport(step, val_loss))
            if last or step % report.checkpoint_every == 0:
                self._save(step)
            self._tracing.end(step, last=last)
        tokens = (step - self._start) * self._tokens_per_step
        return LoopResult(step, val_loss, tokens / seconds if seconds else 0.0, signum)

    @property
    def _tokens_per_step(self) -> int:
        return self._config.batch * self._config.context

    def _step(self, step: int) -> tuple[Shared, float, float, Sequence[str]]:
        session, optimizer = self._session, self._session.optimizer
        loss = torch.zeros((), dtype=torch.float64)
        for rows in self._batches.microbatches(step):
            logits, uneven = session.model(rows[:, :-1], balance=True)
            part = functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
            # Microbatches add up as in torch; weighted, they add up to the mean over the slice.
            share = len(rows) / self._batches.rows
            self._watch.sample()  # activations are at their most now
            ((part + BALANCE * uneven) * share).backward()
            loss += part.detach() * share
        norm = session.clip_grad_norm(self._config.optimizer.clip)
        lr = float(optimizer.param_groups[0]["lr"])
        optimizer.step()
        nonfinite = () if math.isfinite(norm) else session.find_nonfinite()
        optimizer.zero_grad()
        self._scheduler.step()
        return self._share(float(loss)), float(norm), lr, nonfinite

    def _share(self, loss: float) -> Shared:
        memory = self._watch.latest
        waited = self._stragglers.step()
        payload = _SHARED.pack(loss, self._stop.requested(), memory.rss, memory.pss, waited)
        losses, signals, rss, pss, waits = zip(
            *map(_SHARED.unpack, self._session.exchange(payload)), strict=True
        )
        bad = tuple(rank for rank, each in enumerate(losses) if not math.isfinite(each))
        return Shared(sum(losses) / len(losses), max(signals), sum(rss), sum(pss), bad, waits)

    def _report(
        self,
        step: int,
        shared: Shared,
        norm: float,
        lr: float,
        took: float,
        nonfinite: Sequence[str],
    ) -> StepReport:
        losses = [f"loss of rank {rank}" for rank in shared.bad_losses]
        return StepReport(
            step=step,
            loss=shared.loss,
            lr=lr,
            grad_norm=norm,
            tokens=step * self._tokens_per_step,
            seconds=took,
            tokens_per_s=self._tokens_per_step / took,
            rss_bytes=shared.rss,
            pss_bytes=shared.pss,
            skipped=not math.isfinite(norm),
            nonfinite=(*losses, *nonfinite),
            max_wait_s=max(shared.waits),
            last_rank=shared.waits.index(min(shared.waits)),
        )
