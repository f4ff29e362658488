"""What a disk may hold after a power cut, given the steps before it.

Durable is what was synced: the bytes of a file by a sync of the file, names by a sync of their directory.
What came later is on disk wholly, in part or not at all, each file and each directory for itself. A rename
within a directory is there or not; between two, each half for itself. What a write does not touch stays.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from tests.ledger.power_trace import ROOT, Names, Size, Step, Sync, Time, Write

Change: TypeAlias = Names | Write | Size | Time
SECTORS = (512, 4096)
HOW = ("nothing", "all", "beginning", "torn", "some", "some, torn")
"""What is there of the changes that were not synced."""


def after_cut(steps: Sequence[Step], directory: Path, chance: random.Random, how: str = "") -> None:
    """Put into ``directory`` what may be left of ``steps`` if the power goes after the last one.

    ``how`` is one of HOW, for all files and directories; if it is not given, each has its own.
    """
    changes: dict[int, list[Change]] = {ROOT: []}
    durable: dict[int, int] = {}
    for step in steps:
        if isinstance(step, Sync):
            durable[step.place] = len(changes.setdefault(step.place, []))
        elif isinstance(step, Names | Write | Size | Time):
            changes.setdefault(step.place, []).append(step)

    def survivors(place: int) -> list[Change]:
        made, synced = changes.get(place, []), durable.get(place, 0)
        return [*made[:synced], *left_of(made[synced:], how or chance.choice(HOW), chance)]

    def build(place: int, target: Path) -> None:
        names: dict[str, int] = {}
        for change in survivors(place):
            assert isinstance(change, Names)
            for name, file in change.files.items():
                names.pop(name, None)
                if file is not None:
                    names[name] = file
        for name, file in names.items():
            if file < ROOT:
                (target / name).mkdir()
                build(file, target / name)
            else:
                write_file(target / name, survivors(file), chance)

    build(ROOT, directory)


def left_of(changes: Sequence[Change], how: str, chance: random.Random) -> list[Change]:
    """Those of the changes that reached the disk; a write may be torn."""
    if how == "nothing" or not changes:
        return []
    if how == "all":
        return list(changes)
    if how.startswith("some"):
        kept = [change for change in changes if chance.random() < 0.5]
    else:
        kept = list(changes[: chance.randint(0, len(changes))])
    if how.endswith("torn") and kept and isinstance(kept[-1], Write):
        kept[-1:] = torn(kept[-1], chance)
    return kept


def torn(write: Write, chance: random.Random) -> list[Change]:
    """The beginning or the end of a write, cut where a sector ends."""
    sector = chance.choice(SECTORS)
    end = write.offset + len(write.data)
    cuts = range((write.offset // sector + 1) * sector, end, sector)
    if not cuts:
        return []
    cut = chance.choice(cuts)
    if chance.random() < 0.3:
        return [Write(write.place, cut, write.data[cut - write.offset :])]
    return [Write(write.place, write.offset, write.data[: cut - write.offset])]


def write_file(path: Path, changes: Sequence[Change], chance: random.Random) -> None:
    """A file; where it has room that was never written to, zeros or what an older file left there."""
    data = bytearray()
    time = None
    rubbish = chance.random() < 0.3

    def lengthen(size: int) -> None:
        missing = max(0, size - len(data))
        data.extend(chance.randbytes(missing) if rubbish else bytes(missing))

    for change in changes:
        if isinstance(change, Size):
            lengthen(change.size)
            del data[change.size :]
        elif isinstance(change, Write):
            lengthen(change.offset)
            data[change.offset : change.offset + len(change.data)] = change.data
        elif isinstance(change, Time):
            time = change.nanoseconds
    path.write_bytes(data)
    if time is not None:
        os.utime(path, ns=(time, time))
