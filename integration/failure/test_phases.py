"""A rank that ends in whatever phase is one named error on all others, and nothing stays behind."""

import os
import re
from itertools import product

import pytest
from integration.failure.leftovers import nothing_stays
from integration.failure.program import Case, run
from integration.failure.victims import FATES, PHASES

from sshsdp_fsdp_runtime.checkpoint import newest_checkpoint

BY_NAME = {phase.name: phase for phase in PHASES}
BOUND = 25.0  # seconds from a rank's end to the last error, on a machine that does other things too

CHOSEN = [
    ("plan", "fail", 2),
    ("arena memory", "kill", 1),
    ("forward", "kill", 0),
    ("backward", "stop", 2),
    ("vote", "kill", 2),
    ("await unit", "kill", 1),
    ("full state", "stop", 0),
    ("save: write", "stop", 1),
    ("save: commit", "kill", 0),
    ("background: commit", "kill", 0),
    ("load: read", "leave", 2),
]
CHOSEN_NODES = [
    ("group", "leave", 1),
    ("finalize", "stop", 1),
    ("outer reduction", "kill", 2),
]


def cases():
    """A few that cover phases, fates, victims and transports, and the whole grid."""
    few = [Case(BY_NAME[phase], fate, victim) for phase, fate, victim in CHOSEN]
    few += [Case(BY_NAME[name], fate, victim, 4, 2) for name, fate, victim in CHOSEN_NODES]
    grid = []
    for number, (phase, fate, nodes) in enumerate(product(PHASES, FATES, (1, 2))):
        # With an error before anyone has met it, a rank has just not come, as when it left.
        unheard = (phase.name, fate) == ("trade cards", "fail")
        if phase.nodes in (None, nodes) and not unheard:
            world = 3 if nodes == 1 else 4
            grid.append(Case(phase, fate, number // 2 % world, world, nodes))
    rest = [pytest.param(case, marks=pytest.mark.full) for case in grid if case not in few]
    return [*few, *rest]


def name_of(case):
    return f"{case.phase.name}-{case.fate}-rank{case.victim}-nodes{case.nodes}"


@pytest.mark.parametrize("case", cases(), ids=name_of)
def test_every_other_rank_names_the_rank_that_ended(tmp_path, case):
    with nothing_stays():
        accounts = run(case, tmp_path)
    survivors = [account for rank, account in enumerate(accounts) if rank != case.victim]
    for account in survivors:
        assert account.kind in ERRORS[case.fate]
        assert re.search(rf"\brank {case.victim}\b", account.text)
        assert account.seconds < BOUND
        assert account.held == ()
    if case.fate == "fail":
        assert "of this rank alone" in accounts[case.victim].text
        assert all("of this rank alone" in account.text for account in survivors)
    # What was saved is whole, and what was not is not there.
    assert {name.strip(".").split(".")[0] for name in os.listdir(tmp_path)} <= {"1", "2", "3"}
    whole = [name for name in sorted(os.listdir(tmp_path)) if name.isdecimal()]
    newest = newest_checkpoint(tmp_path, contents=True)
    assert newest == (tmp_path / whole[-1] if whole else None)


ERRORS = {
    "kill": {"PeerDiedError", "AbortedError", "WaitTimeoutError", "TransportError"},
    "leave": {"PeerDiedError", "AbortedError", "WaitTimeoutError", "TransportError"},
    "stop": {"WaitTimeoutError", "AbortedError", "CheckpointError", "TransportError"},
    "fail": {"AbortedError", "PlanError", "CheckpointError"},
}
