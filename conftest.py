"""Rules that every test run of this repository obeys: device and slow-grid markers, one thread."""

import importlib.util
import os

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two switches that widen a run."""
    group = parser.getgroup("sshsdp")
    group.addoption(
        "--require-gpu",
        action="store_true",
        help="a gpu test that finds too few devices is an error instead of a skip",
    )
    group.addoption("--full", action="store_true", help="run the slow grid (marker full) as well")


def pytest_configure() -> None:
    """Fix what would make results or times depend on the machine."""
    # torch's stores look up the name of 127.0.0.1: a lost answer costs a second then, and not five.
    os.environ.setdefault("RES_OPTIONS", "timeout:1")
    if HAS_TORCH:
        torch.set_num_threads(1)  # ranks share the cores; a fork must not inherit a thread pool
    if importlib.util.find_spec("hypothesis") is not None:
        from hypothesis import settings

        # A shared core can stall any example; what CI runs must be the same on every run.
        settings.register_profile("local", deadline=None)
        settings.register_profile("ci", deadline=None, derandomize=True)
        settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_report_header() -> str:
    """Say which torch and how many devices the results below come from."""
    if not HAS_TORCH:
        return "torch: not installed"
    return f"torch: {torch.__version__}, CUDA devices: {device_count()}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the slow grid out unless it was asked for."""
    if config.getoption("--full"):
        return
    slow = [item for item in items if item.get_closest_marker("full")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a gpu test that lacks devices, or fail it where devices were promised."""
    marker = item.get_closest_marker("gpu")
    if marker is None:
        return
    needed = marker.kwargs.get("count", marker.args[0] if marker.args else 1)
    found = device_count()
    if found >= needed:
        return
    reason = f"expected {needed} CUDA device(s), got {found}"
    if item.config.getoption("--require-gpu"):
        pytest.fail(f"{reason}; --require-gpu forbids the skip", pytrace=False)
    pytest.skip(reason)


def device_count() -> int:
    """Number of visible CUDA devices; `is_available` can be true with none visible."""
    return torch.cuda.device_count() if HAS_TORCH else 0
