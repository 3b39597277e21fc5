"""Corpus: the token files of a run.

They lie in the run folder, memory-mapped by every rank: train.npy and validation.npy, 1-D unsigned
integers, with corpus.json beside them and, where there is one, the tokenizer.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sshsdp_fsdp_runtime.trainer.config import CorpusConfig
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.sources import (
    Source,
    find_sources,
    read_texts,
    read_tokens,
    standard_library,
)
from sshsdp_fsdp_runtime.trainer.split import Piece, split_stream
from sshsdp_fsdp_runtime.trainer.tokenizer import Tokenizer, open_tokenizer

Tokens = NDArray[np.unsignedinteger]
_TOKENIZER_NAME = "tokenizer.json"
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class CorpusFacts:
    """What corpus.json says."""

    origin: str
    documents: int
    train_tokens: int
    validation_tokens: int
    vocab: int
    is_text: bool

    def describe(self) -> str:
        """One line."""
        return (
            f"{self.origin}: {self.documents} documents, {self.train_tokens:,} training and"
            f" {self.validation_tokens:,} validation tokens, vocabulary {self.vocab}"
        )


@dataclass(frozen=True, slots=True)
class Corpus:
    """Token arrays of both sides of the split.

    Attributes:
        facts: sizes and origin.
        train: 1-D unsigned integers, memory-mapped.
        validation: the same.
        tokenizer: None when the data came as token arrays.
    """

    facts: CorpusFacts
    train: Tokens
    validation: Tokens
    tokenizer: Tokenizer | None

    def check(self, *, context: int, batch: int) -> None:
        """Refuse data that a run could not draw its batches from.

        Raises:
            InputError: naming both numbers and what to change.
        """
        # Windows start at a shifting phase, which costs up to one context at the end.
        needed = (batch + 1) * context + 1
        sides = (("training", self.train, needed), ("validation", self.validation, context + 1))
        for name, tokens, least in sides:
            if len(tokens) < least:
                raise InputError(
                    f"expected at least {least} {name} tokens for batch {batch} and context"
                    f" {context}, got {len(tokens)} from {self.facts.origin}; give more data, or"
                    " lower batch or context"
                )


def build_corpus(folder: Path, data: Sequence[Path], config: CorpusConfig) -> None:
    """Write the token files of `data` (none: the standard library) into `folder`.

    Raises:
        InputError: data that is missing, empty or not what its name says.
    """
    sources = find_sources(data) if data else standard_library()
    origin = ", ".join(map(str, data)) if data else "the Python standard library"
    is_text = not sources[0].kind.holds_tokens
    if not is_text and config.tokenizer is not None:
        raise InputError(
            f"expected text for the tokenizer {config.tokenizer}, got token arrays"
            f" ({sources[0].path}); drop corpus.tokenizer"
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = open_tokenizer(config.tokenizer)
    documents = (
        _encoded(sources, tokenizer)
        if is_text
        else (read_tokens(source, config.token_dtype) for source in sources)
    )
    stream_path = folder / "stream.bin"
    lengths, dtype, highest = _write_stream(stream_path, documents)
    if not sum(lengths):
        raise InputError(f"expected tokens in {origin}, got none")
    split = split_stream(lengths, config.validation_fraction)
    stream = np.memmap(stream_path, dtype=dtype, mode="r")
    _write_side(folder / "train.npy", stream, split.train)
    _write_side(folder / "validation.npy", stream, split.validation)
    stream_path.unlink()
    if config.tokenizer is not None:
        shutil.copyfile(config.tokenizer, folder / _TOKENIZER_NAME)
    facts = CorpusFacts(
        origin=origin,
        documents=len(lengths),
        train_tokens=sum(piece.numel for piece in split.train),
        validation_tokens=sum(piece.numel for piece in split.validation),
        vocab=tokenizer.vocab if is_text else highest + 1,
        is_text=is_text,
    )
    (folder / "corpus.json").write_text(json.dumps(asdict(facts), indent=2) + "\n")


def open_corpus(folder: Path) -> Corpus:
    """The corpus that `build_corpus` wrote into `folder`.

    Raises:
        InputError: when there is none.
    """
    try:
        facts = CorpusFacts(**json.loads((folder / "corpus.json").read_text()))
        train = np.load(folder / "train.npy", mmap_mode="r")
        validation = np.load(folder / "validation.npy", mmap_mode="r")
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"expected the token files of a run in {folder}, got: {error}; start a new run"
        ) from error
    path = folder / _TOKENIZER_NAME
    tokenizer = open_tokenizer(path if path.exists() else None) if facts.is_text else None
    return Corpus(facts, train, validation, tokenizer)


def _encoded(sources: Sequence[Source], tokenizer: Tokenizer) -> Iterator[Tokens]:
    for source in sources:
        for text in read_texts(source):
            tokens = tokenizer.encode(text)
            if tokenizer.end is not None and len(tokens):
                tokens = np.append(tokens, tokens.dtype.type(tokenizer.end))
            yield tokens


def _write_stream(path: Path, documents: Iterator[Tokens]) -> tuple[list[int], np.dtype, int]:
    """Append all documents to one file; their lengths, the element type and the highest id."""
    lengths = []
    highest = 0
    dtype: np.dtype | None = None
    with path.open("wb") as file:
        for tokens in documents:
            native = tokens.dtype.newbyteorder("=")
            if dtype is None:
                dtype = native
            elif native != dtype:
                raise InputError(
                    f"expected token arrays of one element type, got {dtype.name} and"
                    f" {native.name}; convert them"
                )
            for start in range(0, len(tokens), _CHUNK):
                chunk = np.asarray(tokens[start : start + _CHUNK], dtype)
                highest = max(highest, int(chunk.max()))
                chunk.tofile(file)
            lengths.append(len(tokens))
    return lengths, dtype or np.dtype(np.uint8), highest


def _write_side(path: Path, stream: Tokens, pieces: Sequence[Piece]) -> None:
    shape = (sum(piece.numel for piece in pieces),)
    descr = np.lib.format.dtype_to_descr(stream.dtype)
    with path.open("wb") as file:
        # By writing, not by a mapping: there, a full disk is a SIGBUS that says nothing.
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for piece in pieces:
            for start in range(piece.start, piece.stop, _CHUNK):
                stream[start : min(start + _CHUNK, piece.stop)].tofile(file)
