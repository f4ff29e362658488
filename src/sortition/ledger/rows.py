"""A row of a run: what happened, sealed together with the row before."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from sortition.core.errors import LedgerError
from sortition.ledger.encoding import unpack

CHECKSUM_BYTES = 16
COLUMNS = (int, str, int, float, bytes, bytes)
"""What a row consists of; where SQLite's own words are damaged, it may find something else."""
_NUMBERS = struct.Struct("<qqd")


@dataclass(frozen=True, slots=True)
class Event:
    """A row: what happened, in which round, when."""

    number: int
    kind: str
    round_index: int
    time: float
    payload: bytes
    checksum: bytes

    def values(self) -> dict[str, Any]:
        """What the payload holds; of the first row also, that it says which run it begins."""
        values = unpack(self.payload)
        if self.number == 0 and not _is_hexadecimal(values.get("run_id")):
            raise LedgerError(f"run_id of row 0 must be hexadecimal digits, got {values.get('run_id')!r:.80}")
        return values


def checksum(previous: bytes, number: int, kind: str, round_index: int, at: float, payload: bytes) -> bytes:
    """The seal of a row: BLAKE2b over the predecessor's seal and all columns."""
    digest = blake2b(previous, digest_size=CHECKSUM_BYTES)
    digest.update(_NUMBERS.pack(number, round_index, at))
    digest.update(kind.encode() + b"\0")
    digest.update(payload)
    return digest.digest()


def _is_hexadecimal(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("([0-9a-f]{2})+", value) is not None


def looks_like_one(row: Sequence[Any]) -> bool:
    """Whether the columns are of the right types, whatever they say."""
    return tuple(map(type, row)) == COLUMNS


def is_sealed(row: Sequence[Any], previous: bytes) -> bool:
    """Whether a row is as it was written after the one with the seal ``previous``."""
    return looks_like_one(row) and row[-1] == checksum(previous, *row[:-1])
