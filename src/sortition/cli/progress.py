"""A bar for long work."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text


class RoundsProgress:
    """A bar on stderr with rounds a second and the time left; nothing at all where there is no terminal."""

    def __init__(self, total: int) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            RoundsPerSecond(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("rounds", total=total)

    def __enter__(self) -> RoundsProgress:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def advance_to(self, rounds: int) -> None:
        """Show that this many rounds are done."""
        self._bar.update(self._task, completed=rounds)


class RoundsPerSecond(ProgressColumn):
    """How fast it goes, once that is known."""

    def render(self, task: Task) -> Text:
        """The speed as text."""
        return Text("starting" if task.speed is None else f"{task.speed:.0f} rounds/s")
