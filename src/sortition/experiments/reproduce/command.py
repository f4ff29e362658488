"""All runs of some figures, over processes, continued where an earlier start left off."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sortition.core.errors import DataError
from sortition.experiments.parallel import Progress, run_tasks
from sortition.experiments.reproduce.figures import FULL, Figure, Scale, figure
from sortition.experiments.reproduce.settings import IMAGES, RunSettings, Variant
from sortition.experiments.reproduce.store import RunStore, run_and_keep
from sortition.experiments.reproduce.summary import Result, summarise
from sortition.problems.idx import load_images


@dataclass(frozen=True)
class Plan:
    """What is to be run, and what is there already."""

    figures: tuple[Figure, ...]
    store: RunStore
    data: Path | None
    missing: tuple[RunSettings, ...]
    kept: int
    """Finished runs of an earlier start."""
    sources: dict[str, str]
    """Where each image set came from."""

    @property
    def rounds(self) -> int:
        """Rounds still to be run."""
        return sum(settings.num_rounds for settings in self.missing)


def plan(
    names: Sequence[str],
    out: Path,
    *,
    variants: tuple[Variant, ...],
    scale: Scale = FULL,
    data: Path | None = None,
) -> Plan:
    """Check everything that can be wrong, before anything is run or written but ``out`` itself."""
    figures = tuple(figure(name, variants, scale) for name in names)
    sources = {name: load_images(name, data)[2] for name in IMAGES} if "fig6" in names else {}
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
    wanted = dict.fromkeys(settings for each in figures for settings in each.runs())  # each once
    missing = tuple(settings for settings in wanted if not store.holds(settings))
    return Plan(figures, store, data, missing, len(wanted) - len(missing), sources)


def execute(plan: Plan, jobs: int, progress: Progress | None = None) -> tuple[Result, ...]:
    """Run what is missing, longest first, and summarise; every finished run is kept at once."""
    missing = sorted(plan.missing, key=lambda settings: settings.problem not in IMAGES)
    tasks = [partial(run_and_keep, settings, plan.store.directory, plan.data) for settings in missing]
    if tasks:
        run_tasks(tasks, jobs, progress)
    return tuple(summarise(each, plan.store) for each in plan.figures)
