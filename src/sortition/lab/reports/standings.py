"""The arena's outcome: every sampler's standing, as tables, a heat map and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.table import Table

from sortition.core.designs import Design
from sortition.core.types import BoolArray, FloatArray
from sortition.lab.arena.tournament import Arena, Score
from sortition.lab.arena.vectors import VectorArena, VectorScore
from sortition.lab.contestants import BASELINE, ORACLES
from sortition.lab.reports.charts import whole_chart
from sortition.lab.versions import versions

MEASURES = {
    "ratio": "variance over the optimum's, mean over the rounds",
    "early_ratio": "variance over the optimum's, mean over the first tenth of the rounds",
    "to_uniform": "variance over uniform sampling's",
    "early_to_uniform": "variance over uniform sampling's in the first tenth of the rounds",
}
"""What a table can show."""
MANY_SEEDS = 8
"""More seeds than these are not listed."""
LONG = 1e5
"""Numbers from here on are shown by their first digit."""
FIRST_TENTH = {"ratio": "early_ratio", "to_uniform": "early_to_uniform"}
"""Measures of all rounds, and the same of the first tenth."""


@dataclass(frozen=True)
class Standing:
    """One sampler over all environments."""

    sampler: str
    design: Design
    oracle: bool
    geometric_mean: float
    """Of the variance ratios: the headline."""
    early_geometric_mean: float
    worst_to_uniform: float
    """Its largest ratio to uniform sampling by the same design in any environment."""
    worst_early_to_uniform: float
    first_places: int | None
    """Environments in which only oracles are better; None for oracles, and for another design than uniform
    sampling has here."""
    worst_behind: float | None
    """Its largest ratio to the best sampler of an environment, oracles apart; None for another design."""


def standings(arena: Arena) -> list[Standing]:
    """Every sampler over all environments, in the order of the arena."""
    ratio, early = arena.table("ratio"), arena.table("early_ratio")
    to_uniform, early_to_uniform = arena.table("to_uniform"), arena.table("early_to_uniform")
    best = ratio[:, _ranked(arena)].min(axis=1, keepdims=True)
    behind = ratio / best
    return [
        Standing(
            sampler=score.sampler,
            design=score.design,
            oracle=score.sampler in ORACLES,
            geometric_mean=_geometric_mean(ratio[:, place]),
            early_geometric_mean=_geometric_mean(early[:, place]),
            worst_to_uniform=float(to_uniform[:, place].max()),
            worst_early_to_uniform=float(early_to_uniform[:, place].max()),
            first_places=int(np.count_nonzero(behind[:, place] <= 1.0)) if ranked else None,
            worst_behind=float(behind[:, place].max()) if score.design == _usual_design(arena) else None,
        )
        for place, (score, ranked) in enumerate(zip(_first_row(arena), _ranked(arena), strict=True))
    ]


def _first_row(arena: Arena) -> Sequence[Score]:
    """The scores of one environment: one for each sampler."""
    return arena.scores[: len(arena.samplers)]


def _usual_design(arena: Arena) -> Design:
    return next(score.design for score in arena.scores if score.sampler == BASELINE)


def _ranked(arena: Arena) -> BoolArray:
    """Who can win: no oracle, and nobody whose optimum is that of another design."""
    usual = _usual_design(arena)
    return np.array([one.sampler not in ORACLES and one.design == usual for one in _first_row(arena)])


def arena_table(arena: Arena, measure: str = "ratio") -> Table:
    """Environments by samplers, the best one in bold (oracles apart), and the standings below."""
    values = arena.table(measure)
    ranked, table = _ranked(arena), _table(arena, MEASURES[measure])
    for environment, row in zip(arena.environments, values, strict=True):
        best = row[ranked].min()
        cells = [
            f"[bold]{_cell(value)}[/bold]" if known and value == best else _cell(value)
            for value, known in zip(row, ranked, strict=True)
        ]
        table.add_row(environment.name, *cells)
    rows = standings(arena)
    table.add_section()
    table.add_row("geometric mean", *(f"[bold]{_cell(_geometric_mean(own))}[/bold]" for own in values.T))
    if measure in FIRST_TENTH:
        early = arena.table(FIRST_TENTH[measure])
        table.add_row("- of first tenths", *(_cell(_geometric_mean(own)) for own in early.T))
    table.add_row("worst / uniform", *(_cell(row.worst_to_uniform) for row in rows))
    table.add_row("- in first tenth", *(_cell(row.worst_early_to_uniform) for row in rows))
    places = ("-" if row.first_places is None else str(row.first_places) for row in rows)
    table.add_row("first places", *places)
    table.add_row("worst / the best", *(_cell(row.worst_behind) for row in rows))
    return table


def _cell(value: float | None) -> str:
    """A number for a table.

    >>> _cell(1.234), _cell(2e9), _cell(float("nan"))
    ('1.23', '2e+09', '-')
    """
    if value is None or np.isnan(value):
        return "-"
    return f"{value:.2f}" if value < LONG else f"{value:.0e}"


def closed_loop_table(arena: Arena) -> Table:
    """Rounds to what uniform and to what optimal sampling reach, over theirs, and the final loss."""
    table = _table(
        arena, "rounds to uniform's loss, over uniform's | to the optimum's, over its | final loss"
    )
    scores = iter(arena.scores)
    for environment in arena.environments:
        cells = []
        for _ in arena.samplers:
            closed = next(scores).closed_loop
            assert closed is not None, "an arena in closed loop"
            parts = [
                "never" if ratio is None else f"x{ratio:.2f}"
                for ratio in (closed.rounds_to_uniform, closed.rounds_to_optimal)
            ]
            cells.append("\n".join([*parts, f"{closed.final_loss:.3g}"]))
        table.add_row(environment.name, *cells)
    return table


def arena_json(arenas: dict[str, Arena]) -> str:
    """All scores, run by run, with the environments and the standings; what was not reached is null."""
    content = {
        mode: {
            "split": arena.split,
            "seeds": arena.seeds,
            "samplers": arena.samplers,
            "versions": versions(),
            "environments": [
                {"name": env.name, "half": env.half, "about": env.about, "num_rounds": env.num_rounds}
                for env in arena.environments
            ],
            "standings": [asdict(row) for row in standings(arena)],
            "scores": [asdict(score) for score in arena.scores],
        }
        for mode, arena in arenas.items()
    }
    return json.dumps(_finite(content), indent=1, allow_nan=False) + "\n"


def vector_table(arena: VectorArena) -> Table:
    """A row for each environment, cohort size, sampler and design, with and without a memory."""
    title = (
        f"mean squared error of the aggregate over that of with_replacement ({seeds_in_words(arena.seeds)})"
    )
    table = Table(title=title)
    for name in ("environment", "K", "arm"):
        table.add_column(name, no_wrap=True)
    for name in (
        "all\nrounds",
        "second\nhalf",
        "at equal\ntrainings",
        "over no\nmemory",
        "l / l(opt)",
        "b",
        "time",
    ):
        table.add_column(name, justify="right")
    several = len({score.arm.sampler for score in arena.scores}) > 1
    last: object = None
    for score in arena.scores:
        cell = (score.environment, score.arm.cohort_size)
        if last not in (None, cell):
            table.add_section()
        last = cell
        with_memory = score.arm.memory
        table.add_row(
            score.environment,
            str(score.arm.cohort_size),
            vector_arm_name(score, several),
            _with_error(score.error_to_base, score.standard_error),
            _with_error(score.settled_to_base, score.settled_standard_error),
            f"{score.equal_trainings_to_base:.3f}",
            _with_error(score.error_to_no_memory, score.no_memory_standard_error) if with_memory else "",
            f"{score.variance_ratio:.3g}",
            f"{score.coefficient:.2f}" if with_memory else "",
            f"x{score.time_to_base:.1f}",
        )
    return table


def vector_arm_name(score: VectorScore, with_sampler: bool) -> str:
    """The design, "+ memory" where there is one, and the sampler where there are several."""
    arm = score.arm
    name = arm.design + (" + memory" if arm.memory else "")
    return f"{arm.sampler}, {name}" if with_sampler else name


def vectors_json(arena: VectorArena) -> str:
    """All scores, with those of each seed; a standard error that one seed does not have is null."""
    content = {
        "vectors": {
            "split": arena.split,
            "seeds": arena.seeds,
            "environments": [
                {
                    "name": environment.name,
                    "about": environment.about,
                    "num_rounds": environment.num_rounds,
                    "step_size": environment.step_size,
                }
                for environment in arena.environments
            ],
            "scores": [asdict(score) for score in arena.scores],
        }
    }
    return json.dumps(_finite(content), indent=1, allow_nan=False) + "\n"


def _with_error(value: float, standard_error: float) -> str:
    return f"{value:.3f}" if np.isnan(standard_error) else f"{value:.3f} ± {standard_error:.3f}"


def heat_map(arena: Arena, measure: str = "ratio") -> dict[str, Any]:
    """A Vega-Lite specification: one cell for each environment and sampler, coloured by the logarithm."""
    rows = [
        {"environment": score.environment, "sampler": score.sampler, "value": getattr(score, measure)}
        for score in arena.scores
    ]
    ranked = {name for name, can_win in zip(arena.samplers, _ranked(arena), strict=True) if can_win}
    lowest = dict.fromkeys((env.name for env in arena.environments), np.inf)
    for row in rows:
        if row["sampler"] in ranked:
            lowest[row["environment"]] = min(lowest[row["environment"]], row["value"])
    for row in rows:
        row["best"] = row["sampler"] in ranked and row["value"] == lowest[row["environment"]]
        row["shown"] = _cell(row["value"])
    domain = [0.05, 2.0] if "uniform" in measure else [1.0, 20.0]
    x = {"field": "sampler", "type": "nominal", "sort": list(arena.samplers), "title": None}
    y = {"field": "environment", "type": "nominal", "sort": list(lowest), "title": None}
    spec = {
        "title": f"{MEASURES[measure]} ({_how(arena)})",
        "data": {"values": _finite(rows)},
        "width": {"step": 52},
        "height": {"step": 17},
        "encoding": {
            "x": {**x, "axis": {"orient": "top", "labelAngle": -35}},
            "y": y,
        },
        "layer": [
            {
                "mark": "rect",
                "encoding": {
                    "color": {
                        "field": "value",
                        "type": "quantitative",
                        "scale": {
                            "type": "log",
                            "scheme": "yelloworangered",
                            "domain": domain,
                            "clamp": True,
                        },
                        "legend": None,
                    }
                },
            },
            *(
                {
                    "transform": [{"filter": f"datum.best == {str(best).lower()}"}],
                    "mark": {"type": "text", "fontSize": 10, "fontWeight": "bold" if best else "normal"},
                    "encoding": {
                        "text": {"field": "shown", "type": "nominal"},
                        "color": {
                            "condition": {"test": f"datum.value > {0.4 * domain[1]}", "value": "white"},
                            "value": "black",
                        },
                    },
                }
                for best in (False, True)
            ),
        ],
    }
    return whole_chart(spec)


def _table(arena: Arena, title: str) -> Table:
    table = Table(title=f"{title} ({_how(arena)})", padding=(0, 0))
    table.add_column("environment", no_wrap=True)
    for name in arena.samplers:
        title = name.replace(":", ":\n").replace("-", "\n")  # factories of one name differ in their modules
        table.add_column(title, justify="right", vertical="bottom")
    return table


def _how(arena: Arena) -> str:
    return f"{arena.mode}, {seeds_in_words(arena.seeds)}"


def seeds_in_words(seeds: Sequence[int]) -> str:
    """All of them, or how many there are and the first and the last of many.

    >>> seeds_in_words((1, 3)), seeds_in_words(range(1, 49, 2))
    ('seeds 1, 3', '24 seeds, 1 to 47')
    """
    if len(seeds) > MANY_SEEDS:
        return f"{len(seeds)} seeds, {seeds[0]} to {seeds[-1]}"
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _geometric_mean(values: FloatArray) -> float:
    return float(np.exp(np.mean(np.log(values))))


def _finite(value: Any) -> Any:
    """The same with None for every number that JSON can't hold."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
