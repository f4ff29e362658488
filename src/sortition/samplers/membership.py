"""Who can be drawn: the clients, their prior masses and weights, and how they join and leave."""

from __future__ import annotations

from abc import ABC

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.designs import Design
from sortition.core.errors import AvailabilityError, ConfigurationError
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import MOST_CLIENTS, client_ids, masses_of, whole_number
from sortition.engine.capped import Capped
from sortition.engine.crowd import VANISHING
from sortition.engine.drawing import Distribution, mass_without
from sortition.engine.roster import Roster
from sortition.samplers.defences import Defences


class Members(ABC):
    """The part of a sampler that knows who is there."""

    _founders: int
    _cohort_size: int
    _design: Design
    _given_weights: FloatArray | None
    _weights: Roster  # lambda
    _roster: Roster  # the prior
    _distribution: Distribution
    _defences: Defences

    @property
    def distribution(self) -> Distribution:
        """What cohorts are drawn from."""
        return self._distribution

    @property
    def roster(self) -> Roster:
        """Who can be drawn."""
        return self._roster

    @property
    def given_weights(self) -> FloatArray | None:
        """The client weights as they were given."""
        return self._given_weights

    @property
    def num_clients(self) -> int:
        """M, the clients that can be drawn."""
        return self._roster.count

    def client_weights(self, clients: ArrayLike | None = None) -> FloatArray:
        """lambda of all clients, by id, or of ``clients``; rescaled when clients join or leave."""
        if clients is None:
            return self._weights.masses(None) / self._weights.total
        return self._weights_of(client_ids("clients", clients, self._roster.ids))

    # Joining and leaving -----------------------------------------------------------------------------

    def add_clients(self, clients: int | ArrayLike, *, client_weights: ArrayLike | None = None) -> IntArray:
        """Let clients join: so many of them, or one for each prior mass given. Returns their ids.

        Prior masses and ``client_weights`` are in the units of those that the sampler was built with, which
        summed to one; a newcomer has an average founder's of both, 1/M, unless it is given. The newcomers
        start like clients that were never drawn; for the others see ``remove_clients``.

        Unlike founders, newcomers take memory: each has masses of its own, some 50 bytes.
        """
        average, room = 1.0 / self._founders, MOST_CLIENTS - self._roster.ids
        if np.ndim(clients) == 0:
            masses = np.full(whole_number("clients", clients, least=1, most=room), average)
        else:
            masses = masses_of("clients", clients)
            whole_number("the number of clients", len(masses), least=1, most=room)
        weights, given = np.full(len(masses), average), None
        if client_weights is not None:
            weights = given = masses_of("client_weights", client_weights)
            if len(weights) != len(masses):
                raise ConfigurationError(
                    f"client_weights must have one entry for each of the {len(masses)} newcomers, "
                    f"got {len(weights)}"
                )
        before, shown = self._weights.total, self._shown()
        self._weights.add(self._weights.unit * weights)
        ids = self._admit(masses, given)
        if self._defences.guarded:
            scale = shown.scale if isinstance(shown, Capped) else 1.0
            added = scale * (1.0 / mass_without(self._distribution, ids) - 1.0)  # to what was one before
            self._defences.rescale(1.0 / (1.0 + added))
        self._membership_changed(before / self._weights.total)
        return ids

    def remove_clients(self, clients: ArrayLike) -> None:
        """Let clients leave for good; an id is not used again.

        The others keep their proportions exactly: the distribution is the old one, given that none of those
        who left is drawn. So nobody's probability falls, and no weight rises. MABS, VRB, K-Vib, Avare and
        empirical Bayes are formulas of all clients, a least share for each included; the formula applies
        again, to those who are left, with the next feedback.
        Where a guard's ``largest_probability`` or ``outliers_share`` is reached, it goes before proportions.
        """
        leaving = self._present_ids("clients", clients)
        if not len(leaving):
            return
        self.check_leaving(leaving)
        before = self._weights.total
        if self._defences.guarded:
            self._defences.rescale(1.0 / max(mass_without(self._shown(), leaving), VANISHING))
            self._defences.forget(leaving)
        self._weights.remove(leaving)
        self._distribution.remove(leaving)
        self._membership_changed(before / self._weights.total)

    def check_leaving(self, leaving: IntArray) -> None:
        """Raise a ConfigurationError if the sampler can't go on without ``leaving``."""
        left = self.num_clients - len(leaving)
        least = 1 if self._design == "with_replacement" else self._cohort_size
        if left < least:
            raise ConfigurationError(
                f"clients must leave at least {least} others behind, got {len(leaving)} of {self.num_clients}"
            )
        for what, roster in (("weight", self._weights), ("prior mass", self._roster)):
            if not roster.mass_beside(leaving):
                raise ConfigurationError(f"clients must leave some {what} behind, got all of it")

    def _admit(self, masses: FloatArray, client_weights: FloatArray | None) -> IntArray:
        """Let newcomers into the distribution and give their ids; ``client_weights`` as they were given."""
        return self._distribution.add(self._roster.unit * masses)

    def _membership_changed(self, weight_factor: float) -> None:  # noqa: B027 - most need not know
        """Clients joined or left, and every other client's lambda was multiplied by ``weight_factor``."""

    # Details -----------------------------------------------------------------------------------------

    def _shown(self, generator: np.random.Generator | None = None) -> Distribution:
        """The distribution that cohorts are drawn from: what was learnt, under the guard's ceilings."""
        return self._defences.over(self._distribution, self.num_clients, self._weights_of, generator)

    def _present_ids(self, name: str, values: ArrayLike) -> IntArray:
        """Ids of clients who are there, ascending, each once."""
        ids = np.sort(client_ids(name, values, self._roster.ids))
        repeated = ids[1:][ids[1:] == ids[:-1]]
        if len(repeated):
            raise AvailabilityError(f"{name} must name each client once, got {repeated[0]} more than once")
        gone = ids[~self._roster.present(ids)]
        if len(gone):
            raise AvailabilityError(f"{name} must hold ids of clients who are there, but {gone[0]} has left")
        return ids

    def _weights_of(self, clients: IntArray) -> FloatArray:
        """lambda_m of ``clients``."""
        if self._weights.all_alike:
            return np.full(len(clients), 1.0 / self._weights.total)
        return self._weights.masses(clients) / self._weights.total
