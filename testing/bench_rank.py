"""Entry point of one rank of a benchmark program: ``python -m testing.bench_rank ORDER``."""

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from testing.bench_module import load
from testing.ranks import Rank


def main(order_text: str) -> None:
    """Load the benchmark module, call the ordered function, write its answer as JSON."""
    order = json.loads(order_text)
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", order["port"], None, False, timedelta(seconds=order["timeout"]))
    rank = Rank(order["rank"], order["world"], PrefixStore("ranks", store))
    function = getattr(load(Path(order["file"])), order["function"])
    answer = function(rank, **order["arguments"])
    Path(order["answer"]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
