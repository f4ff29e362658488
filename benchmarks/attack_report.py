"""The tables and the picture of ``attack.py``: what its runs amount to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:  # attack.py is the program that is run: it must not be imported a second time
    from attack import Attack, Outcome

Cells: TypeAlias = "dict[tuple[str, str, Attack], Cell]"
"""By sampler, defence and attack."""


@dataclass(frozen=True)
class Cell:
    """Means over the seeds, and half the range."""

    draws: float
    draws_spread: float
    damage: float
    """The loss over that of the honest run without a guard, of the same sampler and seed."""
    damage_spread: float

    def __str__(self) -> str:
        draws = f"{100 * self.draws:.0f} ± {100 * self.draws_spread:.0f}%"
        if not np.isfinite(self.damage) or self.damage >= 100.0:
            return f"{draws}, x{self.damage:.0e}"
        return f"{draws}, x{self.damage:.2f} ± {self.damage_spread:.2f}"


def cells_of(outcomes: Sequence[Outcome]) -> Cells:
    """One cell for each sampler, defence and attack."""
    honest = {
        (one.sampler, one.seed): one.loss
        for one in outcomes
        if one.attack.kind == "honest" and one.defence == "none"
    }
    grouped: dict[tuple[str, str, Attack], list[tuple[float, float]]] = {}
    for one in outcomes:
        key = (one.sampler, one.defence, one.attack)
        grouped.setdefault(key, []).append((one.draws, one.loss / honest[one.sampler, one.seed]))
    cells = {}
    for key, values in grouped.items():
        (draws, damage), spread = np.mean(values, axis=0), np.ptp(values, axis=0) / 2.0
        cells[key] = Cell(float(draws), float(spread[0]), float(damage), float(spread[1]))
    return cells


def markdown(cells: Cells, chosen: Sequence[Attack]) -> str:
    """A table: a row for each sampler and attack, a column for each defence."""
    names = list(dict.fromkeys(name for name, _, _ in cells))
    defences = list(dict.fromkeys(defence for _, defence, _ in cells))
    lines = ["| sampler | attack | " + " | ".join(defences) + " |", "|---" * (2 + len(defences)) + "|"]
    for name in names:
        for attack in chosen:
            row = " | ".join(str(cells[name, defence, attack]) for defence in defences)
            lines.append(f"| {name} | {attack} | {row} |")
    return "\n".join(lines) + "\n"


def picture(cells: Cells, chosen: Sequence[Attack]) -> dict[str, Any]:
    """A Vega-Lite heat map: the colluders' share of the draws, a panel for each defence."""
    rows = [
        {"sampler": name, "defence": defence, "attack": str(attack), "draws": cell.draws}
        for (name, defence, attack), cell in cells.items()
        if attack in chosen
    ]
    order = [str(attack) for attack in chosen]
    names = list(dict.fromkeys(row["sampler"] for row in rows))
    titles = {"none": "no guard", "guard": "Guard(), the default", "strict": "strict"}
    panels = [
        {
            "title": titles[defence],
            "data": {"values": [row for row in rows if row["defence"] == defence]},
            "width": {"step": 46},
            "height": {"step": 19},
            "encoding": {
                "x": {"field": "attack", "type": "nominal", "sort": order, "title": None,
                      "axis": {"orient": "top", "labelAngle": -35}},
                "y": {"field": "sampler", "type": "nominal", "sort": names, "title": None,
                      "axis": {} if place == 0 else {"labels": False, "ticks": False}},
            },
            "layer": [
                {
                    "mark": "rect",
                    "encoding": {
                        "color": {
                            "field": "draws",
                            "type": "quantitative",
                            "scale": {"scheme": "yelloworangered", "domain": [0, 1]},
                            "legend": None,
                        }
                    },
                },
                {
                    "mark": {"type": "text", "fontSize": 10},
                    "encoding": {
                        "text": {"field": "draws", "type": "quantitative", "format": ".0%"},
                        "color": {"condition": {"test": "datum.draws > 0.6", "value": "white"},
                                  "value": "black"},
                    },
                },
            ],
        }
        for place, defence in enumerate(titles)
        if any(row["defence"] == defence for row in rows)
    ]  # fmt: skip
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "background": "white",
        "padding": 8,
        "title": "Share of the draws that colluders get (1% or 5% of the clients)",
        "hconcat": panels,
    }


def honest_table(outcomes: Sequence[Outcome]) -> str:
    """What the guard costs where nobody lies: paired differences over the seeds, with standard errors."""
    names = list(dict.fromkeys(one.sampler for one in outcomes))
    seeds = len({one.seed for one in outcomes})
    lines = [
        "| sampler | loss | guard adds | variance | guard adds | suspects |",
        "|---|---|---|---|---|---|",
    ]
    for name in names:
        found = {(one.defence, one.seed): one for one in outcomes if one.sampler == name}
        text = f"| {name}"
        for quantity in ("loss", "variance"):
            both = np.array([
                [getattr(found[defence, seed], quantity) for defence in ("none", "guard")]
                for seed in range(seeds)
            ])  # fmt: skip
            added = (both[:, 1] - both[:, 0]) / both[:, 0]
            error = added.std(ddof=1) / np.sqrt(seeds)
            text += f" | {both[:, 0].mean():.3f} | {added.mean():+.1%} ± {error:.1%}"
        suspects = np.mean([found["guard", seed].suspects for seed in range(seeds)])
        lines.append(f"{text} | {suspects:.1f} of 100 |")
    return "\n".join(lines)
