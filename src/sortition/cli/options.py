"""Checks of what comes from the command line: each error says what was expected and what came."""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

import typer

LONGEST_LIST = 80
"""Names of so many characters in all fit into an error."""


def whole_number(least: int) -> Callable[[str], int]:
    """A parser whose error, unlike typer's own, says what came."""

    def parse(text: str) -> int:
        if not str(text).isdecimal() or int(text) < least:
            raise typer.BadParameter(f"expected a whole number of at least {least}, got {text!r}.")
        return int(text)

    return parse


def number(text: str) -> float:
    """A number, or an error that says what came."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"expected a number, got {text!r}.") from None


def unknown(name: str, known: Collection[str], listed_by: str) -> typer.BadParameter:
    """The error for a name that is not ``known``: names those that are or, of many, the closest.

    ``listed_by`` is the command that prints them all.
    """
    names = ", ".join(known)
    if len(names) <= LONGEST_LIST:
        return typer.BadParameter(f"expected one of {names}, got {name!r}.")
    close = difflib.get_close_matches(name, known, cutoff=0.5)
    such = f", such as {' or '.join(close)}," if close else ","
    return typer.BadParameter(f"expected one of {len(known)} names{such} got {name!r}; all: {listed_by}")


def one_of(names: Collection[str], listed_by: str = "--help") -> Callable[[str], str]:
    """A check that a name is out of ``names``."""

    def check(name: str) -> str:
        if name not in names:
            raise unknown(name, names, listed_by)
        return name

    return check


def some_of(
    known: Collection[str], listed_by: str, *, factories: bool = False
) -> Callable[[str | None], str | None]:
    """A check that names, separated by commas, are ``known`` or, where there may be any, factories (a:b).

    Blanks around them are taken away.
    """

    def check(names: str | None) -> str | None:
        if names is None:
            return None
        chosen = [name.strip() for name in names.split(",")]
        for name in chosen:
            if name not in known and not (factories and ":" in name):
                raise unknown(name, known, listed_by)
        return ",".join(chosen)

    return check


def writable_file(path: Path | None) -> Path | None:
    """Check that a file can be written where it is to be."""
    if path is not None and not can_be_written_to(path.absolute().parent):
        raise typer.BadParameter(f"expected a file in a directory that can be written to, got {str(path)!r}.")
    return path


def writable_directory(path: Path | None) -> Path | None:
    """Make a directory, and check that files can be written there."""
    if path is None:
        return None
    try:
        path.mkdir(parents=True, exist_ok=True)
        made = True
    except OSError:
        made = False
    if not made or not can_be_written_to(path):
        raise typer.BadParameter(f"expected a directory that can be written to, got {str(path)!r}.")
    return path


def can_be_written_to(directory: Path) -> bool:
    """Whether a file can be made there; only trying tells (/proc says that it can)."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def write_text(path: Path, text: str) -> None:
    """Write a file; the error of a full disk, too, names it."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
