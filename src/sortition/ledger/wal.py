"""What SQLite would take from a WAL: how many pages the database has with it, and which of them it holds.

The format is SQLite's (https://www.sqlite.org/fileformat2.html, section 4). A frame counts only with the
salts of the header and a right checksum, which covers all frames before it; and only up to the last commit.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np

_HEADER = struct.Struct(">IIIIIIII")  # magic, version, page size, checkpoint, two salts, two sums
_FRAME = struct.Struct(">IIIIII")  # page, pages of the database after a commit or 0, two salts, two sums
_BIG_ENDIAN, _LITTLE_ENDIAN = 0x377F0683, 0x377F0682

_Sums: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Committed:
    """What counts of a WAL; no pages where nothing does."""

    page_size: int = 0
    pages: int = 0
    """How many the database has after the last commit."""
    held: frozenset[int] = frozenset()
    """Those of them that the WAL has."""


def committed(wal: Path) -> Committed | None:
    """What of the file ``wal`` counts; None where it can't be read."""
    try:
        with open(wal, "rb") as file:
            return _committed(file)
    except OSError:
        return None


def _committed(file: BinaryIO) -> Committed:
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return Committed()
    magic, _, size, _, *salts, one, other = _HEADER.unpack(header)
    if magic not in (_BIG_ENDIAN, _LITTLE_ENDIAN) or not 512 <= size <= 65536:
        return Committed()
    summed = _Checksum(">u4" if magic == _BIG_ENDIAN else "<u4", 8 + size)
    sums, pages = (one, other), 0
    held, since = set[int](), set[int]()
    while len(frame := file.read(_FRAME.size + size)) == _FRAME.size + size:
        number, after, *rest = _FRAME.unpack_from(frame)
        sums = summed(frame[:8] + frame[_FRAME.size :], sums)
        if rest != [*salts, *sums]:
            break
        since.add(number)
        if after:
            pages = after
            held |= since
            since.clear()
    return Committed(size, pages, frozenset(held))


class _Checksum:
    """SQLite's: a sum is the two before it and the next word; so the words count by Fibonacci numbers."""

    def __init__(self, word: str, length: int) -> None:
        self._word = np.dtype(word)
        numbers = [0, 1]
        while len(numbers) < length // 4 + 2:
            numbers.append((numbers[-1] + numbers[-2]) & 0xFFFFFFFF)
        self._start = numbers[-3:]
        self._weights = np.array(numbers[-2:0:-1], dtype=np.uint32)

    def __call__(self, data: bytes, sums: _Sums) -> _Sums:
        """The two sums after ``data``, by those before it."""
        words = np.frombuffer(data, dtype=self._word).astype(np.uint32)
        before, own, after = self._start
        last = int((self._weights * words).sum(dtype=np.uint32)) + own * sums[0] + after * sums[1]
        one = int((self._weights[1:] * words[:-1]).sum(dtype=np.uint32)) + before * sums[0] + own * sums[1]
        return one & 0xFFFFFFFF, last & 0xFFFFFFFF
