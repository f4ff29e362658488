"""What the OSMD samplers have in common: experts above a floor, drawn from as a mixture."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.types import FloatArray
from sortition.core.validation import distribution, require_support
from sortition.engine.roster import Roster


def prior_roster(
    prior: ArrayLike | None, num_clients: int, client_weights: FloatArray | None
) -> tuple[FloatArray | None, Roster]:
    """The prior as it was given, checked, and the roster that has its masses.

    It generalises the paper's uniform start: experts start at the prior, and the floor is ``exploration``
    times the prior, where the paper has alpha / M.
    """
    if prior is None:
        return None, Roster(num_clients, None)
    given = distribution("prior", prior, num_clients)
    require_support("prior", given, client_weights)
    return given, Roster(num_clients, np.asarray(given))
