"""What the finished runs on real federations say: trainings to the target, ratios and their intervals.

Ratios are computed again without each seed in turn (jackknife), as in ``sortition compare``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sortition.core.types import FloatArray
from sortition.lab.arena.real import BASE, CONTROL, METHODS, SETUPS, Cell, Task, finished, recommended_among
from sortition.lab.arena.tournament import TARGET_SHARE
from sortition.lab.compare import FallingCurve, jackknife_interval
from sortition.lab.federations.data import FEDERATIONS, federation

BYTES_A_NUMBER = 4


@dataclass(frozen=True)
class MethodScore:
    """A method in a cell, over the report seeds."""

    cell: Cell
    method: str
    steps: tuple[float, float]
    rounds: float | None
    """Rounds to the target; None if the mean curve never gets there."""
    trainings: float | None
    """Client trainings to the target."""
    examples: float | None
    megabytes: float | None
    """Models sent and received."""
    ratio: float | None
    """Trainings over those of the reference."""
    interval: tuple[float, float] | None
    final_loss: float
    """Mean over the last tenth of the evaluations."""
    final_spread: float
    """Its standard deviation between seeds."""
    worst_tenth: float
    error: float | None
    """Squared error of the aggregate over the least variance of draws with replacement."""
    losses: FloatArray
    """Mean held-out loss at each evaluation."""
    every: int
    """Rounds between evaluations."""


@dataclass(frozen=True)
class Pair:
    """The recommended setting against the best unbiased rival of a cell."""

    cell: Cell
    rival: str
    ratio: float
    interval: tuple[float, float] | None


class CellResult(NamedTuple):
    """All that is finished in a cell, the reference among it."""

    cell: Cell
    target: float
    scores: tuple[MethodScore, ...]
    best_rival: Pair | None


def judge(tasks: Sequence[Task], directory: Path) -> list[CellResult]:
    """The cells whose reference is finished, each with the methods that are, by federation."""
    outcome = []
    cells = dict.fromkeys(task.cell for task in tasks)
    for cell in sorted(cells, key=lambda cell: list(FEDERATIONS).index(cell.federation)):
        known = {t.method: (t, found) for t in tasks if t.cell == cell and (found := finished(t, directory))}
        if BASE in known:
            outcome.append(_judge_cell(cell, known))
    return outcome


class Curves(NamedTuple):
    """What the runs of a method leave."""

    losses: FloatArray
    """One row a seed."""
    trainings: FloatArray


def _judge_cell(cell: Cell, known: Mapping[str, tuple[Task, dict[str, Any]]]) -> CellResult:
    curves = {
        name: Curves(
            np.array([run["losses"] for run in found["runs"]]),
            np.array([run["trainings"] for run in found["runs"]]),
        )
        for name, (_, found) in known.items()
    }
    base = curves[BASE]
    target = _target(base.losses)
    scores = []
    for name, (task, found) in known.items():
        own, effort = curves[name], task.effort
        evaluations = _evaluations_to(own, target)
        rounds = None if evaluations is None else evaluations * effort.every
        trainings = None if rounds is None else rounds * float(own.trainings.mean())
        ratio = log_ratio(own, base, base)
        last = own.losses[:, -max(1, own.losses.shape[1] // 10) :].mean(axis=1)
        worst = np.array([run["worst"] for run in found["runs"]])
        errors = [error for run in found["runs"] for error in run["errors"]]
        setup = SETUPS[cell.federation]
        examples = None if trainings is None else trainings * setup.local_steps * setup.batch_size
        numbers = _parameters(cell) * (2 if cell.algorithm == "scaffold" else 1)
        megabytes = None
        if trainings is not None:
            megabytes = trainings * numbers * BYTES_A_NUMBER * (1.0 + METHODS[name].downloads) / 1e6
        scores.append(
            MethodScore(
                cell=cell,
                method=name,
                steps=tuple(found["steps"]),
                rounds=rounds,
                trainings=trainings,
                examples=examples,
                megabytes=megabytes,
                ratio=None if ratio is None else math.exp(ratio),
                interval=None if name == BASE else ratio_interval(own, base, base),
                final_loss=float(last.mean()),
                final_spread=float(last.std()) if np.isfinite(last).all() else math.nan,
                worst_tenth=float(worst[:, -max(1, worst.shape[1] // 10) :].mean()),
                error=float(np.mean(errors)) if errors else None,
                losses=own.losses.mean(axis=0),
                every=effort.every,
            )
        )
    return CellResult(cell, target, tuple(scores), _best_rival(cell, scores, curves))


def _best_rival(cell: Cell, scores: Sequence[MethodScore], curves: Mapping[str, Curves]) -> Pair | None:
    """The recommended setting over the unbiased rival with the fewest trainings, size sampling among them.

    The reference counts at its own step sizes or at those of the recommended setting, whichever is better.
    """
    ours = recommended_among(curves)
    rivals = [
        score
        for score in scores
        if score.trainings is not None
        and (METHODS[score.method].role == "unbiased" or score.method in (BASE, CONTROL))
    ]
    if ours not in curves or not rivals:
        return None
    best = min(rivals, key=lambda score: score.trainings or math.inf).method
    ratio = log_ratio(curves[ours], curves[best], curves[BASE])
    if ratio is None:
        return Pair(cell, best, math.inf, None)
    return Pair(cell, best, math.exp(ratio), ratio_interval(curves[ours], curves[best], curves[BASE]))


def _target(losses: FloatArray) -> float:
    return FallingCurve(losses.mean(axis=0)).at(TARGET_SHARE * losses.shape[1])


def log_ratio(own: Curves, other: Curves, base: Curves) -> float | None:
    """Logarithm of the ratio of trainings to the target of ``base``; None if one never gets there."""
    target = _target(base.losses)
    needed, others = _evaluations_to(own, target), _evaluations_to(other, target)
    if needed is None or others is None:
        return None
    return math.log(needed * own.trainings.mean() / (others * other.trainings.mean()))


def _evaluations_to(curves: Curves, target: float) -> float | None:
    """Evaluations until the mean curve is down to the target; None if it never is, or the target is inf."""
    return FallingCurve(curves.losses.mean(axis=0)).rounds_to(target) if math.isfinite(target) else None


def ratio_interval(own: Curves, other: Curves, base: Curves) -> tuple[float, float] | None:
    """Its interval by leaving out one seed at a time, of those that all three have."""
    seeds = min(len(each.losses) for each in (own, other, base))
    three = [Curves(each.losses[:seeds], each.trainings[:seeds]) for each in (own, other, base)]
    whole = log_ratio(*three)
    if seeds < 2 or whole is None:
        return None
    without = [
        log_ratio(*(Curves(np.delete(e.losses, i, axis=0), np.delete(e.trainings, i)) for e in three))
        for i in range(seeds)
    ]
    return jackknife_interval(whole, without)


def _parameters(cell: Cell) -> int:
    from sortition.lab.federations.federated_model import FederatedModel

    return int(FederatedModel(federation(cell.federation), model=cell.model).initial_model().size)
