"""Updates much longer than those of the other clients are made shorter (docs/research/hostile-clients.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import ConfigurationError
from sortition.core.guard_settings import Guard
from sortition.core.protocols import Sampler
from sortition.core.state import part
from sortition.core.types import FloatArray
from sortition.samplers.guard import GuardState

MOST_EXCESS = 1000.0
"""An update that is longer than this many times the bound has diverged: it is refused, and not clipped."""
LENGTHS = "lengths."
"""Prefix of its entries in the state."""


class UpdateClip:
    r"""Clips updates at the ``norm_bound`` of a guard that has seen their lengths.

    The sampler's own guard sees norms times data sizes, and would take a large client for a liar. Here the
    lengths :math:`\|w_m - w\|` alone are compared, so data sizes do not matter. It is the same with a memory:
    residuals would not do, since that of a client that is not remembered yet is rightly longer than others.
    """

    def __init__(self, guard: Guard) -> None:
        self._seen = GuardState(guard, 0)

    def factors(self, cohort: Cohort, lengths: FloatArray) -> FloatArray:
        """What the updates are to be multiplied by, at most 1, with these lengths seen; nothing is changed.

        ``lengths`` are aligned with the cohort; nan means no reply.
        """
        heard, factors = ~np.isnan(lengths), np.ones(len(lengths))
        if np.any(lengths > 0.0):
            bound = self._seen.norm_bound_with(cohort.replied(heard), lengths[heard])
            too_long = lengths > bound
            factors[too_long] = bound / lengths[too_long]
        return factors

    def observe(self, cohort: Cohort, lengths: FloatArray) -> None:
        """Remember these lengths."""
        heard = ~np.isnan(lengths)
        if heard.any():
            self._seen.judge(cohort.replied(heard), lengths[heard])

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to know."""
        return {LENGTHS + name: value for name, value in self._seen.state().items()}

    def restored(self, state: Mapping[str, Any], num_clients: int) -> UpdateClip:
        """The lengths that are in ``state``; none if it is of a run that did not clip."""
        kept, restored = part(state, LENGTHS), UpdateClip(self._seen.guard)
        if kept:
            restored._seen = self._seen.restored(kept, num_clients)
        return restored


def clip_for(clip_updates: object, sampler: Sampler | None) -> UpdateClip | None:
    """By the rule of the sampler's guard, or of ``Guard()`` if it has none; None if it is not wanted."""
    if not isinstance(clip_updates, bool):
        raise ConfigurationError(f"clip_updates must be True or False, got {clip_updates!r}")
    guard = getattr(sampler, "settings", {}).get("guard")
    return UpdateClip(guard if isinstance(guard, Guard) else Guard()) if clip_updates else None
