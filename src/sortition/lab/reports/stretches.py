"""More rounds than points: a point then stands for a stretch of rounds, and hides none of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from sortition.lab.reproduce import Curve


def stretch_length(rounds: int, most: int) -> int:
    """Rounds to a point, so that there are no more than ``most`` points; 1 if they are few."""
    return max(1, -(-rounds // most))


def points(curve: Curve, most: int, *, median: bool = False) -> list[dict[str, Any]]:
    """What to draw: the mean or median of each stretch, and the least and largest that its rounds span.

    ``x`` is the middle of the stretch and ``at`` names its rounds. A round without a number is left out.
    """
    low, high = curve.mean - curve.spread, curve.mean + curve.spread
    length = stretch_length(len(curve.mean), most)
    found = []
    for first in range(0, len(curve.mean), length):
        places = np.arange(first, min(first + length, len(curve.mean)))
        known = places[np.isfinite(low[places]) & np.isfinite(high[places])]
        if not len(known):
            continue
        begin, end = curve.rounds[places[0]], curve.rounds[places[-1]]
        values = curve.mean[known]
        centre = np.median(values) if median else values.mean()
        found.append(
            {
                "sampler": curve.label,
                "x": float((begin + end) / 2),
                "at": f"{begin:g}" if begin == end else f"{begin:.0f} to {end:.0f}",
                "y": short(centre),
                "low": short(low[known].min()),
                "high": short(high[known].max()),
            }
        )
    return found


def in_words(rounds: int, most: int, what: str, *, median: bool = False, spread: bool = False) -> str:
    """What a point stands for; nothing if each round has its own."""
    length = stretch_length(rounds, most)
    if length == 1:
        return ""
    rest = f" (the last for {rounds % length})" if rounds % length else ""
    centre = "median" if median else "mean"
    band = "spans all of theirs" if spread else "goes from their least to their largest"
    return f"Each point stands for {length} {what}s{rest}: the line is their {centre}, the band {band}."


def short(value: float) -> float:
    """Six digits: enough to draw, whatever the scale."""
    return float(f"{value:.6g}")
