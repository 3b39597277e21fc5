"""Runs of tests start their own ranks, wherever they themselves were started, and draw nothing."""

import contextlib

import pytest

from sshsdp_fsdp_runtime.trainer import rank
from sshsdp_fsdp_runtime.trainer.plot import write_plot

with contextlib.suppress(ImportError):  # an extra; imported here once, not by rank 0 of every run
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401


@pytest.fixture(autouse=True)
def no_torchrun(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="module")
def no_pictures():
    """A picture takes as long as the small run that it shows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank, "write_plot", lambda *_: None)
        yield


@pytest.fixture
def pictures(monkeypatch):
    """For tests whose runs do draw one."""
    monkeypatch.setattr(rank, "write_plot", write_plot)
