"""Several runs side by side: what differs between them, what they cost, and where they got."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sortition.core.errors import ConfigurationError, LedgerError
from sortition.core.validation import printable
from sortition.ledger.summary import RunSummary

MOST_NAMES = 6
"""Logged numbers that the table shows at most; the page has them all."""
LEFT_ALIGNED = ("run", "sampler")


@dataclass(frozen=True, slots=True)
class Target:
    """A value of a logged number that the runs should reach."""

    name: str
    value: float

    def __str__(self) -> str:
        return f"{self.name} {self.value:g}"


@dataclass(frozen=True)
class RunComparison:
    """Runs by name. ``make_comparison`` checks them."""

    runs: Mapping[str, RunSummary]
    target: Target | None = None

    @property
    def logged(self) -> list[str]:
        """The names of all numbers that were logged, those that most runs have first."""
        counts: dict[str, int] = {}
        for summary in self.runs.values():
            for name in summary.logged:
                counts[name] = counts.get(name, 0) + 1
        return sorted(counts, key=lambda name: -counts[name])

    def curves(self, name: str) -> dict[str, Mapping[int, float]]:
        """What each run logged under that name, by round."""
        return {run: summary.logged[name] for run, summary in self.runs.items() if name in summary.logged}

    @property
    def falls(self) -> bool:
        """Whether the target is reached from above: there is the median of the runs' first values."""
        assert self.target is not None
        firsts = [
            _finite(numbers)[0][1] for numbers in self.curves(self.target.name).values() if _finite(numbers)
        ]
        return not firsts or float(np.median(firsts)) > self.target.value

    def rounds_to_target(self, run: str) -> int | None:
        """How many rounds were drawn when the target was first reached; None if it never was."""
        assert self.target is not None
        falls = self.falls
        for round_index, value in _finite(self.runs[run].logged.get(self.target.name, {})):
            if value <= self.target.value if falls else value >= self.target.value:
                return round_index + 1
        return None

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Names of columns, and a row for each run."""
        names = self.logged[:MOST_NAMES]
        columns = ["run", "sampler", "rounds", "trainings", "replied", "clients", *names]
        if self.target is not None:
            columns.append(f"rounds to {self.target}")
        columns.append("variance")
        rows = []
        for run, summary in self.runs.items():
            asked = summary.replies + summary.failures
            row = [
                run,
                summary.sampler,
                str(summary.rounds),
                str(asked),
                f"{summary.replies / asked:.1%}" if asked else "-",
                str(len(summary.clients)),
                *(_last(summary.logged.get(name, {})) for name in names),
            ]
            if self.target is not None:
                row.append(self._reached(run))
            rows.append([*row, summary.gain.short()])
        return columns, rows

    def differences(self) -> dict[str, str]:
        """Of each run the settings that differ among the runs that have them; empty if none do."""
        values: dict[str, set[str]] = {}
        for summary in self.runs.values():
            for name, word in summary.words.items():
                values.setdefault(name, set()).add(word)
        different = [name for name in values if len(values[name]) > 1]
        return {
            run: ", ".join(f"{name} {summary.words[name]}" for name in different if name in summary.words)
            for run, summary in self.runs.items()
            if different
        }

    def how_to_read(self) -> list[str]:
        """What the columns mean."""
        lines = [
            "trainings: requests to a client, of which a share replied; clients: how many were drawn at all.",
            "variance: of sampling, over that of uniform sampling, with a 95% interval; from the norms.",
        ]
        if any(summary.gain.residuals for summary in self.runs.values()):
            lines.append("(memory): of what had changed; what the memory itself saves is not in it.")
        if self.target is not None:
            lines.append(
                f"The target, {self.target}, is reached by the first logged value at or "
                f"{'below' if self.falls else 'above'} it; > where it was not."
            )
        if len(self.logged) > MOST_NAMES:
            lines.append(f"{len(self.logged) - MOST_NAMES} more numbers were logged: see --report.")
        return lines

    def text(self) -> str:
        """The table in plain text."""
        columns, rows = self.table()
        widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]

        def joined(line: Sequence[str]) -> str:
            return "  ".join(
                cell.ljust(width) if column in LEFT_ALIGNED else cell.rjust(width)
                for column, cell, width in zip(columns, line, widths, strict=True)
            ).rstrip()

        ruler = "  ".join("-" * width for width in widths)
        lines = [joined(columns), ruler, *map(joined, rows), ""]
        if different := self.differences():
            lines += ["Settings that differ:", *(f"  {run}: {words}" for run, words in different.items()), ""]
        return "\n".join([*lines, *self.how_to_read()])

    def _reached(self, run: str) -> str:
        assert self.target is not None
        numbers = self.runs[run].logged.get(self.target.name, {})
        found = self.rounds_to_target(run)
        if not numbers:
            return "-"
        return f"> {max(numbers) + 1}" if found is None else str(found)


def make_comparison(runs: Mapping[str, RunSummary], target: Target | None = None) -> RunComparison:
    """A comparison of at least two runs; if there is a target, at least one must have logged its name."""
    if len(runs) < 2:
        raise ConfigurationError(f"runs must be at least two to be compared, got {len(runs)}")
    found = RunComparison(runs, target)
    if target is not None and target.name not in found.logged:
        known = ", ".join(found.logged[:20]) or "nothing"
        raise LedgerError(f"target must be of a number that was logged, got {target.name!r}; logged: {known}")
    return found


def run_names(paths: Sequence[Path]) -> list[str]:
    """What to call the runs: their files without .db, or their paths where these are the same.

    >>> run_names([Path("a/one.db"), Path("b/two.db")]), run_names([Path("a/run.db"), Path("b/run.db")])
    (['one', 'two'], ['a/run.db', 'b/run.db'])
    """
    for place, path in enumerate(paths):
        if path.resolve() in [other.resolve() for other in paths[:place]]:
            raise ConfigurationError(f"runs must be different ones, got {path} twice")
    short = [printable(path.name.removesuffix(".db")) for path in paths]
    return short if len(set(short)) == len(short) else [printable(str(path)) for path in paths]


def _finite(numbers: Mapping[int, float]) -> list[tuple[int, float]]:
    return [(round_index, value) for round_index, value in numbers.items() if math.isfinite(value)]


def _last(numbers: Mapping[int, float]) -> str:
    return f"{numbers[max(numbers)]:.4g}" if numbers else "-"
