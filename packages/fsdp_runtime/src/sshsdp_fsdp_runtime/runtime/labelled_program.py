"""A program that shows its name to profilers."""

from sshsdp_updates import labelled
from sshsdp_zerosm import Program


class LabelledProgram:
    """Runs the phases of a program under their names, as ``sshsdp::gather layers.3``.

    Args:
        program: what runs.
        name: for people.
    """

    def __init__(self, program: Program, name: str) -> None:
        self._program = program
        self._name = name
        self._labels: dict[str, str] = {}

    def run(self, phase: str, *, accumulate: bool = False) -> None:
        """See Program.run."""
        label = self._labels.get(phase) or self._label(phase)
        with labelled(label):
            self._program.run(phase, accumulate=accumulate)

    def ready(self, phase: str) -> bool:
        """See Program.ready."""
        return self._program.ready(phase)

    def release(self) -> None:
        """See Program.release."""
        self._program.release()

    def _label(self, phase: str) -> str:
        """The phase, unless the name begins with it, and the name."""
        name = self._name if self._name.startswith(phase) else f"{phase} {self._name}"
        return self._labels.setdefault(phase, f"sshsdp::{name}")
