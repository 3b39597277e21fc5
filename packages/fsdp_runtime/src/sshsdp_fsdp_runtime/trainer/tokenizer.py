"""Tokenizers: text to token ids and back."""

import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sshsdp_fsdp_runtime.trainer.errors import InputError

_END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")


class Tokenizer(Protocol):
    """What the corpus and the sampler need of a tokenizer."""

    vocab: int
    """Number of token ids; the model's vocabulary."""
    end: int | None
    """Id written after every document, where there is one."""

    def encode(self, text: bytes) -> NDArray[np.unsignedinteger]:
        """Token ids of UTF-8 text: 1-D."""
        ...

    def decode(self, tokens: list[int]) -> str:
        """Text of token ids; what is not valid text is replaced."""
        ...


class ByteTokenizer:
    """The bytes of the text; NUL, which no text holds, ends a document."""

    vocab = 256
    end: int | None = 0

    def encode(self, text: bytes) -> NDArray[np.unsignedinteger]:
        """The bytes themselves: uint8."""
        return np.frombuffer(text, np.uint8)

    def decode(self, tokens: list[int]) -> str:
        """UTF-8 text; ends of documents become form feeds, which terminals can show."""
        return bytes(tokens).replace(b"\0", b"\f").decode(errors="replace")


class FileTokenizer:
    """A tokenizer.json of Hugging Face `tokenizers`.

    Args:
        path: the file.

    Raises:
        InputError: when the package is not installed or the file is not such a file.
    """

    def __init__(self, path: Path) -> None:
        self._tokenizer = _load(path)
        self.vocab: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        ids = (self._tokenizer.token_to_id(name) for name in _END_NAMES)
        self.end: int | None = next((each for each in ids if each is not None), None)
        self._dtype = np.uint16 if self.vocab <= 1 << 16 else np.uint32

    def encode(self, text: bytes) -> NDArray[np.unsignedinteger]:
        """Token ids without added special tokens: uint16, or uint32 for large vocabularies."""
        encoding = self._tokenizer.encode(text.decode(errors="replace"), add_special_tokens=False)
        return np.asarray(encoding.ids, self._dtype)

    def decode(self, tokens: list[int]) -> str:
        """Text, special tokens left out."""
        return str(self._tokenizer.decode(tokens))


def open_tokenizer(path: Path | None) -> Tokenizer:
    """Bytes, or the tokenizer file at `path`."""
    return ByteTokenizer() if path is None else FileTokenizer(path)


def _load(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"expected a tokenizer.json, got {path}, which is not a file")
    # Its thread pool would not survive the fork of the ranks.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from tokenizers import Tokenizer as HuggingFaceTokenizer
    except ImportError as error:
        raise InputError(
            "expected the package tokenizers for corpus.tokenizer, got none; do:"
            " pip install 'sshsdp-fsdp-runtime[tokenizers]'"
        ) from error
    try:
        return HuggingFaceTokenizer.from_file(str(path))
    except Exception as error:  # the package raises bare Exception
        raise InputError(f"expected a tokenizer.json in {path}, got: {error}") from error
