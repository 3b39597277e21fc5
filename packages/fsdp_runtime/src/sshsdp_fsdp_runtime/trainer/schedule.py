"""Schedule: the learning rate over the steps."""

import math
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from sshsdp_fsdp_runtime.trainer.config import OptimizerConfig


def lr_factor(step: int, steps: int, config: OptimizerConfig) -> float:
    """Learning rate of step `step` (0-based) as a share of the peak.

    Linear from 1 / warmup_steps to 1, then the configured decay, which reaches final_lr_fraction
    at the last step. A run shorter than its warm-up ends inside it.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.decay == "constant":
        return 1.0
    progress = min(1.0, (step - config.warmup_steps) / max(1, steps - 1 - config.warmup_steps))
    if config.decay == "linear":
        falling = 1.0 - progress
    else:
        falling = 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.final_lr_fraction + (1.0 - config.final_lr_fraction) * falling


def make_scheduler(optimizer: Optimizer, steps: int, config: OptimizerConfig) -> LambdaLR:
    """A torch scheduler of `lr_factor`; call its step() after each optimizer step."""
    return LambdaLR(optimizer, lambda step: lr_factor(step, steps, config))


def restore_scheduler(
    scheduler: LambdaLR, state: dict[str, Any], steps: int, config: OptimizerConfig
) -> None:
    """Load `state` and set the learning rates for its step.

    The rates are computed anew, because a resumed run may have another number of steps.
    """
    scheduler.load_state_dict(state)
    factor = lr_factor(scheduler.last_epoch, steps, config)
    for group, peak in zip(scheduler.optimizer.param_groups, scheduler.base_lrs, strict=True):
        group["lr"] = peak * factor
