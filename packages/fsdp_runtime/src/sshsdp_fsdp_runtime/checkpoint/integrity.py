"""What a file of a checkpoint has to be: its length and a checksum."""

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sshsdp_fsdp_runtime.checkpoint.errors import IncompleteCheckpointError

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Length and CRC-32 of a file.

    Attributes:
        nbytes: length.
        crc32: of the content; None where the format that wrote it kept none.
    """

    nbytes: int
    crc32: int | None

    @classmethod
    def of(cls, file: Path) -> "FileFacts":
        """Read the whole file, a block at a time."""
        crc = 0
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                crc = zlib.crc32(block, crc)
            return cls(stream.tell(), crc)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "FileFacts":
        """Inverse of dataclasses.asdict."""
        return cls(row["nbytes"], row["crc32"])

    def check_length(self, file: Path) -> None:
        """Compare the file's length.

        Raises:
            IncompleteCheckpointError: it is missing or has another one.
        """
        try:
            found = os.stat(file).st_size
        except FileNotFoundError:
            raise _damaged(file, f"of {self.nbytes} bytes", "missing") from None
        if found != self.nbytes:
            raise _damaged(file, f"of {self.nbytes} bytes", f"{found} bytes long")

    def check_content(self, file: Path) -> None:
        """Compare the file's checksum; reads all of it.

        Raises:
            IncompleteCheckpointError: the content is not what was written.
        """
        if self.crc32 is None:
            return
        found = FileFacts.of(file)
        if found != self:
            expected = f"with checksum {self.crc32:08x}"
            raise _damaged(file, expected, f"another one, with {found.crc32:08x}")


def _damaged(file: Path, expected: str, found: str) -> IncompleteCheckpointError:
    return IncompleteCheckpointError(
        f"expected {file.name} {expected} in {file.parent}, which is incomplete: the file is "
        f"{found}; copy the folder again or load an earlier one"
    )
