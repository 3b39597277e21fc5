"""What a rank has moved so far."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals of one rank since it connected; they only grow.

    Attributes:
        pulled_bytes: copied by Pull.
        put_bytes: copied by Put.
        reduced_bytes: source bytes that Reduce has read.
        within_bytes: of all these, what came from or went to another rank of the own node.
        between_bytes: of all these, what went to a rank of another node.
        gathers: runs of a phase called "gather".
        waits: executed Wait and WaitGeneration.
        signals: executed Signal.
    """

    pulled_bytes: int = 0
    put_bytes: int = 0
    reduced_bytes: int = 0
    within_bytes: int = 0
    between_bytes: int = 0
    gathers: int = 0
    waits: int = 0
    signals: int = 0
