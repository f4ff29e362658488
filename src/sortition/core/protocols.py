"""What a sampler promises to the server that runs the rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.errors import ConfigurationError
from sortition.core.types import FloatArray
from sortition.core.validation import shown


@runtime_checkable
class Sampler(Protocol):
    """Chooses the clients that train in a round, and learns from the norms of their updates.

    ``sortition.testing.check_sampler`` tests every promise that the types can't express.
    """

    @property
    def num_clients(self) -> int:
        """M, the clients that can be drawn."""

    @property
    def cohort_size(self) -> int:
        """K, the draws of a round."""

    def draw(self, available: ArrayLike | None = None) -> Cohort:
        """Draw the next round's cohort, from everybody or from those ``available``, which it then carries."""

    def observe(self, cohort: Cohort, norms: ArrayLike) -> None:
        """Learn from the update norms, aligned with ``cohort.clients``; nan means no reply."""

    def probabilities(self, clients: ArrayLike | None = None) -> FloatArray:
        """The probabilities of the next draw: all of them, which sum to one, or those of ``clients``."""

    def state_dict(self) -> dict[str, Any]:
        """All that a continued run needs, as plain arrays and scalars."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state as if the run had never stopped."""


def check_available(sampler: object, cohort: Cohort, available: ArrayLike | None) -> None:
    """A ConfigurationError if the sampler did not write on the cohort what it was drawn from."""
    got = cohort.available
    if got is None or available is None:
        right = got is available
    else:
        right = np.array_equal(np.sort(got), np.sort(available))
    if not right:
        raise ConfigurationError(
            f"{type(sampler).__name__}.draw must put the clients that it was given on the cohort, as "
            f"Cohort(..., available=available), got {shown(got)} there instead of {shown(available)}"
        )
