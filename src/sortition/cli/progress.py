"""A bar for long work."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text

SHOWN_EVERY = 50


class RoundsProgress:
    """A bar on stderr with rounds a second and the time left; nothing at all where there is no terminal.

    Where ``total`` is not known yet, ``advance`` tells; ``what`` is counted.
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
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def advance_to(self, rounds: int) -> None:
        """Show that this many rounds are done."""
        self._bar.update(self._task, completed=rounds)

    def advance(self, done: int, total: int) -> None:
        """Show that so many of so many are done; cheap enough to be called for each."""
        if not self._bar.disable and (done % SHOWN_EVERY == 0 or done == total):
            self._bar.update(self._task, completed=done, total=total)


class RoundsPerSecond(ProgressColumn):
    """How fast it goes, once that is known."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def render(self, task: Task) -> Text:
        """The speed as text."""
        return Text("starting" if task.speed is None else f"{task.speed:.0f} {self._what}/s")
