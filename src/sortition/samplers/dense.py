"""The base for a sampler of your own: say what the masses are, and how feedback changes them."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.designs import Design
from sortition.core.errors import ConfigurationError
from sortition.core.guard_settings import Guard
from sortition.core.state import array, scalar
from sortition.core.types import FloatArray
from sortition.core.validation import real_number, real_numbers
from sortition.engine.fixed import Dense
from sortition.samplers.base import BaseSampler
from sortition.samplers.privacy import NormPrivacy


class DenseSampler(BaseSampler):
    r"""A sampler that keeps a mass for every client, and draws in proportion to the masses.

    Implement ``masses`` and ``update``; draws, designs, tickets, availability, late feedback, joins and
    leaves, the guard, privacy and bit-identical resume are given. Before the first feedback all clients have
    the same probability. A round costs O(M).

    Keep what you learn of each client in ``per_client``, and single numbers in ``numbers``. Name them with
    their start values in the constructor: ``per_client={"last": 1.0}`` makes ``self.per_client["last"]``, an
    array of ones with one entry for each client id. Both are saved and restored. A client that joins gets the
    start value. Add the keywords of your own constructor to ``settings``.

    >>> class LastUpdate(DenseSampler):
    ...     def __init__(self, *, num_clients: int, cohort_size: int, seed: int = 0) -> None:
    ...         super().__init__(num_clients, cohort_size, seed=seed, per_client={"last": 1.0})
    ...
    ...     def masses(self) -> FloatArray:
    ...         last = self.per_client["last"]
    ...         return last + 0.2 * last.mean()
    ...
    ...     def update(self, cohort: Cohort, contributions: FloatArray) -> None:
    ...         self.per_client["last"][cohort.clients] = contributions
    >>> sampler = LastUpdate(num_clients=4, cohort_size=2)
    >>> cohort = sampler.draw()
    >>> sampler.observe(cohort, [8.0] * len(cohort))
    >>> bool(sampler.probabilities(cohort.clients)[0] > 1 / 4)
    True
    """

    def __init__(
        self,
        num_clients: int,
        cohort_size: int,
        client_weights: ArrayLike | None = None,
        design: Design = "with_replacement",
        seed: int = 0,
        guard: Guard | None = None,
        privacy: NormPrivacy | None = None,
        *,
        per_client: Mapping[str, float] | None = None,
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(num_clients, cohort_size, client_weights, design, seed, guard, privacy)
        self._starts = {name: real_number(name, start) for name, start in (per_client or {}).items()}
        self._start_numbers = {name: real_number(name, start) for name, start in (numbers or {}).items()}
        taken = inspect.signature(type(self)).parameters  # by a subclass without a constructor of its own
        own = {"per_client": self._starts, "numbers": self._start_numbers}
        self.settings |= {name: value for name, value in own.items() if name in taken}
        self._begin()

    @abstractmethod
    def masses(self) -> FloatArray:
        """One mass for each client id, finite and not negative; it is drawn in proportion to them.

        A mass of 0 for a client that counts makes the aggregate biased, and is refused. Masses of clients
        that have left are ignored.
        """

    @abstractmethod
    def update(self, cohort: Cohort, contributions: FloatArray) -> None:
        r"""Learn from the clients of ``cohort``, those that replied.

        ``contributions`` are :math:`\sqrt{a_m} = \lambda_m \|g_m\|`, aligned with ``cohort.clients``: how
        long each update is in the aggregate. The best distribution is proportional to them. Their unit
        stays that of the start, where clients join or leave. They may be as large as 1e300: do not square
        them, or take logarithms.
        ``cohort.weights`` has mean one for every client, so weighted sums over a cohort estimate sums over
        all clients.
        """

    def _begin(self) -> None:
        self.per_client = {name: np.full(self._roster.ids, start) for name, start in self._starts.items()}
        self.numbers = dict(self._start_numbers)
        self._distribution = self._dense = Dense(self._roster)

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        unit = self._weights.total / self._weights.unit  # that of the start, whoever has joined or left
        self.update(cohort, unit * np.exp(0.5 * log_feedback))
        self._check_learnt()
        self._dense.set(self._checked_masses())

    def observe(self, cohort: Cohort, norms: ArrayLike) -> None:
        """Learn from the update norms, as every sampler does; an error in ``update`` changes nothing."""
        before = self.state_dict()
        try:
            super().observe(cohort, norms)
        except Exception:
            self._begin()  # whatever ``update`` has left behind
            self.load_state_dict(before)
            raise

    def _check_learnt(self) -> None:
        ids = self._roster.ids
        for name, values in self.per_client.items():
            if name not in self._starts or np.shape(values) != (ids,):
                raise ConfigurationError(
                    f"per_client[{name!r}] must be given to the constructor and keep one entry for each of "
                    f"the {ids} client ids, got shape {np.shape(values)}"
                )
        for name, value in self.numbers.items():
            if name not in self._start_numbers or np.ndim(value):
                raise ConfigurationError(
                    f"numbers[{name!r}] must be given to the constructor and stay one number, got {value!r}"
                )

    def _checked_masses(self) -> FloatArray:
        name = f"{type(self).__name__}.masses()"
        masses = real_numbers(name, self.masses(), ConfigurationError).astype(np.float64)
        if masses.shape != (self._roster.ids,):
            raise ConfigurationError(
                f"{name} must return one mass for each of the {self._roster.ids} client ids, "
                f"got shape {masses.shape}"
            )
        masses[~self._roster.present(np.arange(len(masses)))] = 0.0
        wrong = np.flatnonzero(~((masses >= 0.0) & np.isfinite(masses)))
        if len(wrong):
            raise ConfigurationError(
                f"{name} must be finite and not negative, got {masses[wrong[0]]} for client {wrong[0]}"
            )
        masses = masses / max(float(masses.max()), np.finfo(float).tiny)
        missing = np.flatnonzero((masses == 0.0) & (self.client_weights() > 0.0))
        if len(missing):
            raise ConfigurationError(
                f"{name} must be above 0 for every client with a weight, got 0, or next to nothing, "
                f"for client {missing[0]}"
            )
        return masses

    def _membership_changed(self, weight_factor: float) -> None:
        for name, start in self._starts.items():
            values = self.per_client[name]
            newcomers = np.full(self._roster.ids - len(values), start)
            self.per_client[name] = np.concatenate((values, newcomers))

    def _state(self) -> dict[str, Any]:
        return {
            **{f"per_client.{name}": values.copy() for name, values in self.per_client.items()},
            **{f"numbers.{name}": float(value) for name, value in self.numbers.items()},
            "masses": self._dense.masses,
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        ids = (self._roster.ids,)
        for name in self._starts:
            self.per_client[name] = array(state, f"per_client.{name}", np.float64, ids)
        for name in self._start_numbers:
            self.numbers[name] = float(scalar(state, f"numbers.{name}"))
        self._dense.restore(state)
