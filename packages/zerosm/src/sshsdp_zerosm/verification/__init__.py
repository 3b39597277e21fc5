"""Schedules looked at as data: proofs, bytes and times."""

from sshsdp_zerosm.verification.simulate import Rates, Simulation, simulate
from sshsdp_zerosm.verification.story import Idle, Publish, Run, Scene, Use
from sshsdp_zerosm.verification.traffic import Traffic, op_traffic, traffic
from sshsdp_zerosm.verification.verify import ScheduleError, Verified, verify

__all__ = [
    "Idle",
    "Publish",
    "Rates",
    "Run",
    "Scene",
    "ScheduleError",
    "Simulation",
    "Traffic",
    "Use",
    "Verified",
    "op_traffic",
    "simulate",
    "traffic",
    "verify",
]
