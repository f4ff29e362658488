"""All runs of some figures, over processes, continued where an earlier start left off."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sortition.core.errors import DataError
from sortition.lab.parallel import Progress, run_tasks
from sortition.lab.problems.idx import images_digest, load_images
from sortition.lab.reproduce.figures import FULL, TUNING_REPEATS, Figure, Line, Scale, figure
from sortition.lab.reproduce.origin import origin
from sortition.lab.reproduce.settings import IMAGES, REPLAYED, RunSettings, Variant
from sortition.lab.reproduce.store import RunStore, run_and_keep
from sortition.lab.reproduce.summary import Result, best_candidate, summarise

LONGEST_FIRST = {REPLAYED: 0, **dict.fromkeys(IMAGES, 1)}


@dataclass(frozen=True)
class Plan:
    """What is to be run, and what is there already."""

    figures: tuple[Figure, ...]
    store: RunStore
    data: Path | None
    missing: tuple[RunSettings, ...]
    """What is to be run first."""
    kept: int
    """Finished runs of an earlier start."""
    sources: dict[str, str]
    """Where each image set came from."""
    origin: dict[str, Any]
    """The code that makes what is missing."""

    @property
    def rounds(self) -> int:
        """Rounds still to be run; where step sizes are to be chosen, at most so many."""
        return sum(run.rounds_in_all() for run in self.missing) + sum(
            run.num_rounds for line in self._tuned() for run in line.candidates[0][TUNING_REPEATS:]
        )

    def remaining(self) -> tuple[RunSettings, ...]:
        """What is missing once the step sizes can be chosen: the other repeats at those."""
        wanted = dict.fromkeys(run for line in self._tuned() for run in best_candidate(line, self.store))
        return tuple(run for run in wanted if not self.store.holds(run))

    def _tuned(self) -> list[Line]:
        return [line for each in self.figures for line in each.lines if len(line.candidates) > 1]


def plan(
    names: Sequence[str],
    out: Path,
    *,
    variants: tuple[Variant, ...],
    scale: Scale = FULL,
    data: Path | None = None,
) -> Plan:
    """Check everything that can be wrong, before anything is run or written but ``out`` itself."""
    sources, digests = _look_at_images(data) if "fig6" in names else ({}, {})
    figures = tuple(figure(name, variants, scale, digests) for name in names)
    directory = out / "runs"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"the output directory must be one that can be made and written to, got {str(out)!r} "
            f"({error.strerror})"
        ) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise DataError(f"the output directory must be writable, got {str(out)!r}")
    store = RunStore(directory)
    wanted = dict.fromkeys(  # each once
        run
        for each in figures
        for runs in (each.replayed, *(line.tuning() for line in (*each.lines, *each.published)))
        for run in runs
    )
    missing = tuple(settings for settings in wanted if not store.holds(settings))
    return Plan(figures, store, data, missing, len(wanted) - len(missing), sources, origin())


def _look_at_images(data: Path | None) -> tuple[dict[str, str], dict[str, str]]:
    """Where the image sets come from, and their digests; no two of them may be the same images."""
    sources, digests = {}, {}
    for name in IMAGES:
        images, labels, sources[name] = load_images(name, data)
        digests[name] = images_digest(images, labels)
    if len(set(digests.values())) < len(IMAGES):
        raise DataError(
            "the image sets must be different images, got the same twice: "
            + "; ".join(f"{name} from {source}" for name, source in sources.items())
        )
    return sources, digests


def execute(plan: Plan, jobs: int, progress: Progress | None = None) -> tuple[Result, ...]:
    """Run what is missing, choose the step sizes, run the rest, and summarise.

    The longest come first; every finished run is kept at once.
    """
    report = progress or (lambda rounds: None)
    _run(plan, sorted(plan.missing, key=lambda run: LONGEST_FIRST.get(run.problem, 9)), jobs, report)
    before = sum(run.rounds_in_all() for run in plan.missing)
    _run(plan, plan.remaining(), jobs, lambda rounds: report(before + rounds))
    return tuple(summarise(each, plan.store) for each in plan.figures)


def _run(plan: Plan, missing: Sequence[RunSettings], jobs: int, progress: Progress) -> None:
    tasks = [
        partial(run_and_keep, settings, plan.store.directory, plan.data, plan.origin) for settings in missing
    ]
    if tasks:
        run_tasks(tasks, jobs, progress, [settings.name() for settings in missing])
