"""What a program does to a directory, as the kernel sees it (strace): a list of steps in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pytest

CHANGING = (
    "open,openat,openat2,creat,write,pwrite64,lseek,ftruncate,fsync,fdatasync,utimensat,"
    "rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,"
    # not modelled, and a failure if the program does one of them to the directory:
    "writev,pwritev,pwritev2,truncate,fallocate,copy_file_range,sendfile,splice,link,linkat,symlink,symlinkat,"
    "rmdir,mmap,sync,syncfs,sync_file_range"
)
SKIPPED = "-shm"
"""SQLite's index of its log: mapped into memory, and made anew when the run is opened."""
ROOT = 0
"""The place of the directory itself; directories in it have numbers below, files above."""
_CALL = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+|\?)")
_TEXT = re.compile(r"\"((?:\\x[0-9a-f]{2})*)\"(\.\.\.)?")
_FILE = re.compile(r"(\d+)<((?:\\x[0-9a-f]{2})+)>(\(deleted\))?")
_TIME = re.compile(r"tv_sec=(\d+), tv_nsec=(\d+)")


@dataclass(frozen=True)
class Names:
    """Names of a directory that change at once: each one's file from now on, None for none."""

    place: int
    files: dict[str, int | None]


@dataclass(frozen=True)
class Write:
    """Bytes that are written to a file."""

    place: int
    offset: int
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Size:
    """A file that is cut, or made longer."""

    place: int
    size: int


@dataclass(frozen=True)
class Time:
    """The time that a file is given."""

    place: int
    nanoseconds: int


@dataclass(frozen=True)
class Sync:
    """All steps before, of that file or directory, are durable."""

    place: int
    path: str
    call: str


@dataclass(frozen=True)
class Mark:
    """What the program said on its standard output."""

    text: str


Step: TypeAlias = Names | Write | Size | Time | Sync | Mark


def record(program: Path, run: Path, *options: str) -> list[str]:
    """The lines of strace for ``program run``."""
    trace = run.with_name("trace")
    traced = [
        "strace",
        "-f",
        "-y",
        "-xx",
        "-s",
        "1000000",
        "-e",
        f"trace={CHANGING}",
        "-o",
        str(trace),
        *options,
    ]
    found = subprocess.run(
        [*traced, sys.executable, str(program), str(run)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    if "ptrace" in found.stderr.lower():
        pytest.skip("strace may not trace here")
    killed = any("SIGKILL" in option for option in options)
    assert (found.returncode != 0) == killed, found.stderr
    lines = trace.read_text().splitlines()
    trace.unlink()
    return lines


class Reader:
    """From lines of strace to steps; places are numbers, for names come and go."""

    def __init__(self, directory: Path) -> None:
        self._root = os.fsencode(directory)
        self._names: dict[int, dict[str, int]] = {ROOT: {}}
        self._used = ROOT
        self._offset: dict[int, int] = {}

    def steps(self, lines: list[str]) -> Iterator[Step]:
        """What was done, in order; calls that failed or did not return did nothing."""
        begun: dict[str, str] = {}
        program = lines[0].split(" ", 1)[0]
        for line in lines:
            process = line.split(" ", 1)[0]
            if line.endswith("<unfinished ...>"):
                begun[process] = line.removesuffix("<unfinished ...>")
                continue
            if "resumed>" in line:
                line = begun.pop(process) + line.split("resumed>", 1)[1]
            found = _CALL.match(line)
            if found is not None and found[4] != "?" and int(found[4]) >= 0:
                yield from self._step(found[2], found[3], int(found[4]), speaks=process == program)

    def _step(self, call: str, arguments: str, result: int, *, speaks: bool) -> Iterator[Step]:
        texts = [_bytes(text) for text, _ in _TEXT.findall(arguments)]
        target = _FILE.match(arguments)
        if call == "write" and arguments.startswith("1<"):
            if speaks:  # not what a program says that was started by an import
                yield Mark(texts[0].decode().strip())
            return
        if target is not None and call not in ("openat", "openat2"):
            path = _bytes(target[2])
            if target[3] or not self._ours(path):
                return
            place, name = self._find(path), os.fsdecode(path)
            if call == "pwrite64":
                yield Write(place, int(arguments.rsplit(", ", 1)[1]), texts[0][:result])
            elif call == "write":
                yield Write(place, self._offset[place], texts[0][:result])
                self._offset[place] += result
            elif call == "lseek":
                self._offset[place] = result
            elif call == "ftruncate":
                yield Size(place, int(arguments.rsplit(", ", 1)[1]))
            elif call in ("fsync", "fdatasync"):
                yield Sync(place, name, call)
            elif call == "utimensat":
                seconds, nanoseconds = _TIME.findall(arguments)[1]
                yield Time(place, int(seconds) * 10**9 + int(nanoseconds))
            else:
                raise NotImplementedError(f"{call} of {name}")
            return
        if not any(self._ours(text) for text in texts):
            if call == "mmap" and "MAP_SHARED" in arguments and "PROT_WRITE" in arguments:
                mapped = [_bytes(path) for _, path, _ in _FILE.findall(arguments)]
                assert not any(self._ours(path) for path in mapped), "a file that is mapped can't be followed"
            return
        if call in ("openat", "open"):
            yield from self._opened(texts[0], arguments)
        elif call in ("mkdir", "mkdirat"):
            place, name = self._parent(texts[0])
            directory = -self._new()
            self._names[directory] = {}
            yield self._named(place, {name: directory})
        elif call in ("unlink", "unlinkat"):
            place, name = self._parent(texts[0])
            yield self._named(place, {name: None})
        elif call in ("rename", "renameat", "renameat2"):
            (source, old), (place, new) = map(self._parent, texts)
            file = self._names[source][old]
            if source == place:
                yield self._named(place, {old: None, new: file})
            else:  # of two directories, one may be on disk before the other
                yield self._named(place, {new: file})
                yield self._named(source, {old: None})
        else:
            raise NotImplementedError(f"{call} of {texts[0]!r}")

    def _opened(self, path: bytes, arguments: str) -> Iterator[Step]:
        if path == self._root:
            return
        place, name = self._parent(path)
        if name not in self._names[place]:
            assert "O_CREAT" in arguments, f"{path!r} was there before"
            yield self._named(place, {name: self._new()})
        elif "O_TRUNC" in arguments:
            yield Size(self._names[place][name], 0)
        self._offset[self._names[place][name]] = 0

    def _named(self, place: int, files: dict[str, int | None]) -> Names:
        for name, file in files.items():
            if file is None:
                self._names[place].pop(name)
            else:
                self._names[place][name] = file
        return Names(place, files)

    def _new(self) -> int:
        self._used += 1
        return self._used

    def _ours(self, path: bytes) -> bool:
        return (path + b"/").startswith(self._root + b"/") and not path.endswith(SKIPPED.encode())

    def _find(self, path: bytes) -> int:
        place = ROOT
        for name in os.fsdecode(path[len(self._root) + 1 :]).split("/"):
            place = self._names[place][name] if name else place
        return place

    def _parent(self, path: bytes) -> tuple[int, str]:
        parent, _, name = path.rpartition(b"/")
        return self._find(parent), os.fsdecode(name)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))
