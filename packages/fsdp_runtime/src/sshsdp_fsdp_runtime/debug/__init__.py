"""Finds out what a training does wrong: values that are not finite, ranks that are late, traces."""

from sshsdp_fsdp_runtime.debug.origin import Detector, Origin, detect_nonfinite
from sshsdp_fsdp_runtime.debug.stragglers import RankTimes, StragglerReport, StragglerWatch
from sshsdp_fsdp_runtime.debug.trace import merge_traces, trace
from sshsdp_fsdp_runtime.plan.wait_phase import WaitPhase
from sshsdp_fsdp_runtime.runtime import Nonfinite

__all__ = [
    "Detector",
    "Nonfinite",
    "Origin",
    "RankTimes",
    "StragglerReport",
    "StragglerWatch",
    "WaitPhase",
    "detect_nonfinite",
    "merge_traces",
    "trace",
]
