"""What the commands share: checks of their options, files to write to, and a progress bar."""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text

from sortition.core.errors import ConfigurationError
from sortition.core.validation import MOST_REPEATED, shown
from sortition.ledger.summary import whole_file

OPTIONS = {
    "cohort_size": "--cohort",
    "num_rounds": "--rounds",
    "problem": "--problem",
    "samplers": "--samplers",
    "seed": "--seed",
    "step_size": "--step-size",
}
"""Arguments that an error names first, and what most commands call them."""
MOST_SEED = 2**63 - 1
"""The largest seed: twice as many are allowed, so that there is room for seed + 1, seed + 2, ..."""
LONGEST_LIST = 80
"""Names with this many characters in all fit into an error."""
SHOWN_EVERY = 50
"""The bar is updated once in this many calls."""


def whole_number(least: int, most: int = MOST_REPEATED) -> Callable[[str], int]:
    """A parser whose error, unlike typer's own, shows the value."""

    def parse(text: str) -> int:
        try:
            found = int(text) if str(text).isdecimal() else least - 1
        except ValueError:  # Python reads no number of thousands of digits
            found = most + 1
        if found < least:
            raise typer.BadParameter(f"expected a whole number of at least {least}, got {text!r}.")
        if found > most:
            raise typer.BadParameter(f"expected a whole number of at most {most}, got {shown(text)}.")
        return found

    return parse


def number(text: str) -> float:
    """A number, or an error that shows the value."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"expected a number, got {text!r}.") from None


@contextmanager
def as_typed(options: Mapping[str, str]) -> Iterator[None]:
    """An error that starts with the name of an argument starts with its option, as it was typed."""
    try:
        yield
    except ConfigurationError as error:
        error.args = (re.sub(r"^\w+(?=[: ])", lambda name: options.get(name[0], name[0]), str(error)),)
        raise


def unknown(
    name: str, known: Collection[str], listed_by: str, *, factories: bool = False
) -> typer.BadParameter:
    """The error for a name that is not ``known``: it lists the known names or, if they are many, the closest.

    ``listed_by`` is the command that prints all of them. With ``factories`` these are samplers.
    """
    names = ", ".join(known)
    if len(names) <= LONGEST_LIST:
        return typer.BadParameter(f"expected one of {names}, got {name!r}.")
    about = _about_sampler(name) if factories else ""
    close = [] if about else difflib.get_close_matches(name, known, cutoff=0.5)
    such = f", such as {' or '.join(close)}" if close else ""
    own = ", or module:factory" if factories else ""
    return typer.BadParameter(
        f"expected one of {len(known)} names{such}{own}, got {name!r}{about}; all: {listed_by}"
    )


def _about_sampler(name: str) -> str:
    """What there is to say about a name that is no sampler's, but is used elsewhere."""
    from sortition.lab.rivals.field import RIVALS  # which a look at a run does not need

    if name == "default":
        return " (the default sampler is empirical-bayes)"
    if name in RIVALS:
        return " (a published rival: sortition arena --real runs them all, and takes no --samplers)"
    return ""


def one_of(
    names: Collection[str], listed_by: str = "--help", *, factories: bool = False
) -> Callable[[str], str]:
    """A check that a name is one of ``names`` or, with ``factories``, like module:factory."""

    def check(name: str) -> str:
        if name not in names and not (factories and ":" in name):
            raise unknown(name, names, listed_by, factories=factories)
        return name

    return check


def some_of(
    known: Collection[str], listed_by: str, *, factories: bool = False
) -> Callable[[str | None], str | None]:
    """A check that names, separated by commas, are ``known`` or, with ``factories``, like module:factory.

    Blanks around names are removed.
    """

    def check(names: str | None) -> str | None:
        if names is None:
            return None
        chosen = [name.strip() for name in names.split(",")]
        for name in chosen:
            if name not in known and not (factories and ":" in name):
                raise unknown(name, known, listed_by, factories=factories)
        return ",".join(chosen)

    return check


def writable_file(path: Path | None) -> Path | None:
    """Check that a file can be written at this path."""
    if path is not None and not can_be_written_to(path.absolute().parent):
        raise typer.BadParameter(f"expected a file in a directory that can be written to, got {str(path)!r}.")
    return path


def page_file(path: Path | None) -> Path | None:
    """Check that a page can be written at this path, and that a browser will open it."""
    if path is not None and path.suffix.lower() != ".html":
        raise typer.BadParameter(f"expected a file that ends in .html, got {str(path)!r}.")
    return writable_file(path)


ReportFile = Annotated[
    Path | None,
    typer.Option(
        callback=page_file, metavar="FILE", dir_okay=False, help="Write a page to look at here (.html)."
    ),
]
"""The option --report of every command that can make a page."""


def writable_directory(path: Path | None) -> Path | None:
    """Check that files can be written in this directory; it is made only when there is something to write."""
    if path is None:
        return None
    whole = path.absolute()
    there = next(each for each in (whole, *whole.parents) if os.path.lexists(each))
    if not can_be_written_to(there):
        why = "" if os.path.exists(there) else f": {str(there)!r} is a link to nothing"
        raise typer.BadParameter(
            f"expected a directory that can be written to, got {str(path)!r}{why}.", param_hint="'--out'"
        )
    return path


def can_be_written_to(directory: Path) -> bool:
    """Whether a file can be made there; only trying tells (/proc claims that it can)."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def write_text(path: Path, text: str, *sources: Path) -> None:
    """Write a file, whole or not at all, and make its directory.

    Only who may read all the ``sources`` may read it. Its path is in the error even if the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, *sources) as file:
            file.write(text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def widen(console: Console, columns: int) -> None:
    """Let tables be so wide in a pipe or a file, which has room for them; COLUMNS still counts."""
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = columns


class RoundsProgress:
    """A bar on stderr with rounds a second and the time left; without a terminal nothing is shown.

    ``what`` is counted. If ``total`` is not known yet, ``advance`` gives it.
    """

    def __init__(self, total: int | None, what: str = "rounds") -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            RoundsPerSecond(what),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> RoundsProgress:
        if not self._bar.disable:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._bar.disable:  # rich before 14.1 would write an empty line
            self._bar.stop()

    def advance_to(self, rounds: int) -> None:
        """Show that this many rounds are done."""
        self._bar.update(self._task, completed=rounds)

    def advance(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` are done; cheap enough to be called for each of them."""
        if not self._bar.disable and (done % SHOWN_EVERY == 0 or done == total):
            self._bar.update(self._task, completed=done, total=total)


class RoundsPerSecond(ProgressColumn):
    """The speed, once it is known."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def render(self, task: Task) -> Text:
        """The speed as text."""
        return Text("starting" if task.speed is None else f"{task.speed:.0f} {self._what}/s")
