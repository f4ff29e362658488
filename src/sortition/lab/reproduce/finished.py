"""Finished runs as files. A file is complete or missing; damaged files are refused. Each names its code."""

from __future__ import annotations

import io
import json
import os
import subprocess
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import sortition
from sortition.core.errors import DataError
from sortition.core.types import FloatArray
from sortition.lab.parallel import Tick
from sortition.lab.reproduce.figures import RunSettings
from sortition.lab.reproduce.simulate import simulate
from sortition.lab.versions import in_words, versions

PACKAGE = Path(sortition.__file__).parent


def write_whole(path: Path, content: bytes) -> None:
    """Write a new file beside ``path`` and rename it: at any moment there is a complete file, old or new."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise DataError(
            f"{path} can't be written ({error.strerror}); finished runs are kept, so start again"
        ) from None


class RunStore:
    """A directory with one file for each finished run, named by the key of its settings."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, settings: RunSettings) -> Path:
        """The file for the results of these settings."""
        return self.directory / f"{settings.key()}.npz"

    def holds(self, settings: RunSettings) -> bool:
        """Whether the run is finished. A damaged file is an error."""
        if not self.path(settings).is_file():
            return False
        self.load(settings)
        return True

    def load(self, settings: RunSettings) -> dict[str, FloatArray]:
        """The curves of a finished run."""
        return self._read(settings)[0]

    def origins(self, runs: Iterable[RunSettings]) -> list[dict[str, Any]]:
        """The code that made the finished ones of ``runs``, without repetition."""
        found: list[dict[str, Any]] = []
        for run in runs:
            if self.path(run).is_file() and (origin := self._read(run)[1]) not in found:
                found.append(origin)
        return found

    def _read(self, settings: RunSettings) -> tuple[dict[str, FloatArray], dict[str, Any]]:
        path = self.path(settings)
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
                curves = {name: archive[name] for name in archive.files}
            said = json.loads(str(curves.pop("settings")))
            origin = json.loads(str(curves.pop("origin")))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{path} should hold a finished run but is damaged ({error}); delete it and start again"
            ) from None
        if said != settings.plain() or not len(curves.get("loss", ())):
            raise DataError(f"{path} holds another run than its name says; delete it and start again")
        return curves, origin

    def save(self, settings: RunSettings, curves: dict[str, FloatArray], origin: dict[str, Any]) -> None:
        """Save the curves of a finished run, and the code that made it."""
        content = io.BytesIO()
        texts = {"settings": settings.plain(), "origin": origin}
        arrays: dict[str, Any] = {name: np.array(json.dumps(value)) for name, value in texts.items()} | curves
        np.savez(content, **arrays)
        write_whole(self.path(settings), content.getvalue())


def run_and_keep(
    settings: RunSettings, directory: Path, data: Path | None, origin: dict[str, Any], tick: Tick
) -> None:
    """Run and save the result; called in a worker."""
    RunStore(directory).save(settings, simulate(settings, data, tick), origin)


def origin() -> dict[str, Any]:
    """The commit and the versions of the running code."""
    return {"commit": commit(), "versions": versions()}


def commit() -> str | None:
    """The commit of the checkout that this code runs from, "+" for changes since; None outside of one."""
    try:
        name, changed = (
            subprocess.run(
                ["git", "-C", PACKAGE, *arguments], capture_output=True, text=True, check=True
            ).stdout
            for arguments in (
                ["rev-parse", "--short", "HEAD"],
                ["status", "--porcelain", "--untracked-files=no", "--", str(PACKAGE)],
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return name.strip() + ("+" if changed.strip() else "")


def origins_in_words(origins: list[dict[str, Any]]) -> str:
    """Origins as a report names them.

    >>> origins_in_words([{"commit": "abc", "versions": {"numpy": "2.4"}}, {"commit": None, "versions": {}}])
    'commit abc with numpy 2.4; an unknown commit'
    """
    return "; ".join(
        (f"commit {each['commit']}" if each["commit"] else "an unknown commit")
        + (" with " if each["versions"] else "")
        + in_words(each["versions"])
        for each in origins
    )
