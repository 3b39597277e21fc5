"""What a compiler needs to reach ranks by messages."""

from collections.abc import Iterable

import torch

from sshsdp_zerosm.process_group.network import Network
from sshsdp_zerosm.process_group.steps import RunStep, SendStep, SentStep
from sshsdp_zerosm.steps import Step


class NetworkRemote:
    """Makes steps that send; see Remote.

    Args:
        network: of this rank.
        far: ranks that get messages.
    """

    def __init__(self, network: Network, far: Iterable[int]) -> None:
        self._network = network
        self._far = frozenset(far)
        self._programs = 0
        self._arenas: dict[str, int] = {}

    def register(self, name: str, memory: torch.Tensor) -> None:
        """An arena was made; the same order on all ranks."""
        self._arenas[name] = self._network.register(memory)

    def forget(self, name: str) -> None:
        """An arena was released."""
        self._network.forget(self._arenas.pop(name))

    def program(self) -> None:
        """See Remote."""
        self._programs += 1

    def start(self, schedule: str, phase: str) -> Step:
        """See Remote."""
        text = f"phase {phase!r} of schedule {schedule!r} (compiled as number {self._programs})"
        return RunStep(self._network, self._network.order.name(text))

    def put(self, source: torch.Tensor, to: int, arena: str, offset: int) -> Step:
        """See Remote."""
        return SendStep(self._network, source, to, self._arenas[arena], offset)

    def fence(self, source: torch.Tensor) -> Step:
        """See Remote."""
        return SentStep(self._network, source, self._far)
