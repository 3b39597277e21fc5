"""The command line: which tensor, which formats, where the numbers go."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from sshsdp_mxfp.explain.document import document
from sshsdp_mxfp.explain.errors import UserError, missing
from sshsdp_mxfp.explain.loss import Loss, measure
from sshsdp_mxfp.explain.names import DEFAULT, parse_formats
from sshsdp_mxfp.explain.picture import write_picture
from sshsdp_mxfp.explain.source import from_file, from_seed
from sshsdp_mxfp.explain.summary import Summary, summarize
from sshsdp_mxfp.formats import Format

_BAD_INPUT = 2
_SHAPE, _SEED = "1024x1024", 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m sshsdp_mxfp`` with these arguments (default: of the process).

    Returns:
        The exit status: 0, or 2 for what the user can mend; the reason is on standard error.
    """
    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:  # argparse has spoken: help or a wrong option
        return int(end.code or 0)
    try:
        explain(options)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return _BAD_INPUT
    return 0


def explain(options: argparse.Namespace) -> None:
    """Measure, and show or write the result.

    Args:
        options: as parsed.

    Raises:
        UserError: for what the user can mend, before anything is measured where that is possible.
    """
    try:
        from rich.console import Console

        from sshsdp_mxfp.explain.table import report
    except ImportError as error:
        raise missing("rich", "for tables") from error
    formats = parse_formats(options.formats or DEFAULT)
    title, x = _tensor(options)
    if x.ndim == 1:
        formats = _of_rows(formats, asked=options.formats is not None)
    summary = summarize(x)
    losses = _measure(x, formats, summary)
    Console(highlight=False).print(report(title, summary, losses))
    if options.json is not None:
        _write(options.json, json.dumps(document(title, summary, losses), indent=2) + "\n")
    if options.png is not None:
        write_picture(options.png, title, summary, losses)


def _tensor(options: argparse.Namespace) -> tuple[str, Tensor]:
    if (options.file is None) == (options.random is None):
        raise UserError("expected a FILE or --random, one of the two; see --help")
    if options.random is not None:
        if options.tensor is not None:
            raise UserError("expected no --tensor with --random; leave it out")
        shape = options.shape or _SHAPE
        seed = _SEED if options.seed is None else options.seed
        return f"random ({options.random}, seed {seed})", from_seed(options.random, shape, seed)
    if options.shape is not None or options.seed is not None:
        raise UserError("expected --shape and --seed with --random only; leave them out")
    return from_file(options.file, options.tensor)


def _of_rows(formats: list[Format], *, asked: bool) -> list[Format]:
    """Formats that a tensor of one dimension can have.

    Raises:
        UserError: if one that the user `asked` for isn't among them.
    """
    fit = [fmt for fmt in formats if fmt.rows == 1]
    if asked and len(fit) < len(formats):
        raise UserError("expected blocks of one row for a tensor of one dimension, as in e4m3:1x32")
    return fit


def _measure(x: Tensor, formats: Sequence[Format], summary: Summary) -> list[Loss]:
    """Losses; where that takes a while a terminal shows how far it is."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("measuring", total=len(formats) * x.numel())
        return [
            measure(x, fmt, summary, lambda count: progress.advance(task, count)) for fmt in formats
        ]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"expected a --json file that can be written, got: {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m sshsdp_mxfp", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser(
        "explain",
        help="what formats would do to a tensor",
        description="Measure what block-scaled formats lose of a tensor, and advise on one.",
        epilog="A format is ELEMENT[:BLOCK[:RULE]]: e4m3, e5m2, e2m3, e3m2 or e2m1; 1x32 (default),"
        " 32x1, 32x32 or another block; rceil (default), floor, ceil or even.",
        allow_abbrev=False,
    )
    command.add_argument("file", nargs="?", type=Path, metavar="FILE", help=".safetensors or .npy")
    command.add_argument("--tensor", metavar="NAME", help="which one, where FILE holds several")
    command.add_argument(
        "--random",
        nargs="?",
        const="normal",
        metavar="KIND",
        help="instead of FILE: normal (default), rows (of different scale) or outliers",
    )
    command.add_argument("--shape", metavar="SIZES", help=f"of --random; default {_SHAPE}")
    command.add_argument("--seed", type=int, metavar="N", help=f"of --random; default {_SEED}")
    command.add_argument("--formats", metavar="A,B", help=f"default {DEFAULT}")
    command.add_argument("--png", type=Path, metavar="FILE", help="draw the numbers there")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there")
    return parser
