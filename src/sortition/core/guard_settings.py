"""The settings of a guard, and whom it suspects; ``samplers.guard`` has the rules.

Apart from them, for whoever reads a recorded run needs no sampler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Any

import numpy as np

from sortition.core.errors import ConfigurationError
from sortition.core.state import array, check
from sortition.core.validation import named_keywords, positive_number

LARGEST_LOG = math.log(np.finfo(float).max)
MOST_HITS = 2**62


@dataclass(frozen=True, slots=True, repr=False)
class Guard:
    """The defences of a sampler against clients that lie about their norms.

    ``guard=None`` is the paper to the letter.

    ``Guard(largest_gain=3, outlier_factor=2)`` leaves less to liars, and costs more where a few honest
    clients have very large norms; ``update_factor=3`` is for liars with some percent of the weight:
    ``docs/research/hostile-clients.md`` has the figures.
    """

    clip_factor: float = 100.0
    """A norm is clipped at this multiple of the ninth decile of recent norms, or at ``fence``."""
    fence: float = 4.0
    """The same in distances of that decile from the median, in logarithms; the higher of the two counts."""
    outlier_factor: float = 5.0
    """Above this multiple of the ninth decile, or ``outlier_fence``, a client is an outlier."""
    outlier_fence: float = 0.75
    """As ``fence``, for outliers."""
    update_factor: float = 10.0
    """``norm_bound``, for updates, is this multiple of the ninth decile Q9, or Q9 / Q2 times it if that is
    more (Q2: the median), and never above the clip."""
    largest_gain: float = 21.0
    """What all outliers together may hold of what was learnt, over their client weight; but at most half. Or
    what log-normal norms would explain, if that is more, with ``least_deviation`` or the one estimated."""

    def __post_init__(self) -> None:
        for field in fields(self):
            above = 0.0 if field.name.endswith("fence") else 1.0
            value = positive_number(field.name, getattr(self, field.name), above=above)
            object.__setattr__(self, field.name, value)  # 100 and 100.0 are one setting
        for low, high in (("outlier_factor", "clip_factor"), ("outlier_fence", "fence")):
            if getattr(self, low) > getattr(self, high):
                raise ConfigurationError(
                    f"{low} must be at most {high} ({getattr(self, high):g}), got {getattr(self, low):g}: "
                    "whoever is clipped is an outlier"
                )

    @property
    def least_deviation(self) -> float:
        r"""The least :math:`s` of ``engine.limit.share_of``: outliers of the weight 2.5 / gain may hold half.

        >>> round(Guard().least_deviation, 2), Guard(largest_gain=3).least_deviation
        (1.18, 0.0)
        """
        return 0.0 - NormalDist().inv_cdf(min(2.5 / self.largest_gain, 0.5))

    def __repr__(self) -> str:
        changed = (f.name for f in fields(self) if getattr(self, f.name) != f.default)
        return f"Guard({', '.join(f'{name}={getattr(self, name)!r}' for name in changed)})"


Guard.__init__ = named_keywords(Guard.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A client whose norms were clipped."""

    client: int
    hits: int
    """How many of its reports were clipped."""
    largest_excess: float
    """The largest of them, as a multiple of the bound (inf where no double can hold it)."""


Hits = dict[int, tuple[int, float]]
"""By client: how many of its reports were clipped, and the logarithm of the largest excess."""


def hits_in(state: Mapping[str, Any], ids: int = MOST_HITS) -> Hits:
    """What the state of a sampler with ``ids`` client ids says of the norms that were clipped."""
    suspects = array(state, "guard.suspects", np.int64, (None,))
    hits = array(state, "guard.hits", np.int64, (len(suspects),))
    worst = array(state, "guard.excesses", np.float64, (len(suspects),))
    check("guard.suspects", suspects, (suspects >= 0) & (suspects < ids), f"from 0 to {ids - 1}")
    check("guard.hits", hits, (hits > 0) & (hits <= MOST_HITS), f"from 1 to {MOST_HITS}")
    check("guard.excesses", worst, (worst >= 0.0) & np.isfinite(worst), "finite and not negative")
    return dict(zip(suspects.tolist(), zip(hits.tolist(), worst.tolist(), strict=True), strict=True))


def suspects_of(hits: Hits) -> list[Suspect]:
    """The clients whose norms were clipped, the most frequent first."""
    found = [
        Suspect(client, count, math.exp(worst) if worst < LARGEST_LOG else math.inf)
        for client, (count, worst) in hits.items()
    ]
    return sorted(found, key=lambda suspect: (-suspect.hits, suspect.client))
