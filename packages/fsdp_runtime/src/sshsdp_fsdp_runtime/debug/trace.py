"""Chrome traces of ranks: one file per rank, and one timeline of them all."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from sshsdp_fsdp_runtime.runtime import ShardedModule

_FLOWS = "stf"  # phases of events that belong together by their id


@contextmanager
def trace(model: ShardedModule, path: str | Path) -> Iterator[None]:
    """Write a Chrome trace of what this rank does inside to `path`. Local.

    What sshsdp does is labelled ``sshsdp::...``: forwards, gathers and reductions by group, the
    stages of the update by rule, G, checkpoints. Ranks that call it at the same time with paths of
    their own have traces that `merge_traces` makes one timeline of.

    Args:
        model: gets hooks that label the forward of each group, for the time being.
        path: of the new file; Perfetto and chrome://tracing read it.

    Raises:
        OSError: the file can't be written; before the block runs.
    """
    path = Path(path)
    path.touch()
    hooks = [hook for name in _groups(model) for hook in _label_forward(model, name)]
    try:
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as recorded:
            yield
    finally:
        for hook in hooks:
            hook.remove()
    recorded.export_chrome_trace(str(path))
    _name_process(path, model.transport.rank)


def merge_traces(paths: Sequence[str | Path], path: str | Path) -> None:
    """One timeline of the ranks' traces, taken on one host: a process per rank.

    Args:
        paths: what `trace` has written, in rank order.
        path: of the new file.

    Raises:
        ValueError: there are no traces.
    """
    if not paths:
        raise ValueError("expected the paths of one trace or more, got none; trace() writes them")
    traces = [json.loads(Path(each).read_text(encoding="utf-8")) for each in paths]
    merged = {**traces[0], "traceEvents": []}
    base = min(each["baseTimeNanoseconds"] for each in traces)
    for rank, each in enumerate(traces):
        shift = (each["baseTimeNanoseconds"] - base) / 1000  # ts are microseconds
        for event in each["traceEvents"]:
            if event["ph"] in _FLOWS:
                event["id"] = f"{rank}.{event['id']}"
            if "ts" in event:
                event["ts"] += shift
            merged["traceEvents"].append(event)
    merged["baseTimeNanoseconds"] = base
    Path(path).write_text(json.dumps(merged), encoding="utf-8")


def _groups(model: ShardedModule) -> list[str]:
    return [group.module for group in model.plan.groups]


def _label_forward(model: nn.Module, name: str) -> list[Any]:
    module = model.get_submodule(name)
    label = f"sshsdp::forward {name or 'root'}"
    running: list[Any] = []

    def before(_module: nn.Module, _args: Any) -> None:
        running.append(record_function(label))
        running[-1].__enter__()

    def after(_module: nn.Module, _args: Any, _output: Any) -> None:
        if running:  # a hook before ours may have raised
            running.pop().__exit__(None, None, None)

    return [
        module.register_forward_pre_hook(before, prepend=True),
        module.register_forward_hook(after, always_call=True),
    ]


def _name_process(path: Path, rank: int) -> None:
    """Call the process by its rank, and put it in that place."""
    content = json.loads(path.read_text(encoding="utf-8"))
    events = content["traceEvents"]
    pid = os.getpid()
    for event in events:
        if event["pid"] == pid and event["name"] == "process_name":
            event["args"]["name"] = f"rank {rank}"
        if event["pid"] == pid and event["name"] == "process_sort_index":
            event["args"]["sort_index"] = rank
    path.write_text(json.dumps(content), encoding="utf-8")
