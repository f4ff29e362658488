"""The draw of a round among identities: the sampler, who is who in it, and how much data each has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import ConfigurationError, StateError
from sortition.core.protocols import Sampler
from sortition.core.state import array, scalar
from sortition.core.types import BoolArray, FloatArray, IntArray
from sortition.core.validation import whole_number
from sortition.integrations.flower.identities import natural_order
from sortition.integrations.flower.sizes import DataSizes
from sortition.samplers.default import default_sampler

SAMPLER = "sampler."


@dataclass(frozen=True)
class Drawn:
    """A cohort, and what was true when it was drawn."""

    cohort: Cohort
    names: tuple[str, ...]
    """Identities, aligned with ``cohort.clients``."""
    available: IntArray
    probabilities: FloatArray
    """Of each available client, summing to one."""
    total: float
    """The examples of all the available; nan where nothing was known of anybody."""


@dataclass(frozen=True)
class Settled:
    """What a round came to. ``shares`` (lambda) and ``norms`` are aligned with ``replied``."""

    replied: Cohort
    shares: FloatArray
    norms: FloatArray
    scale: float
    """What to multiply the sum of ``size * weight * update`` with, ``weight`` as drawn."""


class Lottery:
    """Draws identities, whatever numbers the sampler knows them by.

    A sampler multiplies each norm by the client weight that it was built with, and those are fixed before any
    client has reported its size. So it is told norms multiplied by lambda_m over its own weight, and its
    feedback is a_m = (lambda_m norm_m)^2 whatever that is: uniform for a sampler that was given, and for one
    of the default kind the data sizes, if all of them were known when it was built.
    """

    def __init__(
        self,
        sampler: Sampler | None,
        cohort_size: int | None,
        num_examples: Mapping[str, float] | None,
        seed: int,
    ) -> None:
        if (sampler is None) == (cohort_size is None):
            raise ConfigurationError(
                "one of cohort_size and sampler must be given, got "
                + ("neither" if sampler is None else "both")
            )
        if sampler is not None and sampler.state_dict().get("config.client_weights", "uniform") != "uniform":
            raise ConfigurationError(
                "sampler must be built without client_weights, since the data sizes come from the clients or "
                "from num_examples, got one that has its own"
            )
        self._cohort_size = 0 if cohort_size is None else whole_number("cohort_size", cohort_size, least=1)
        self._seed = whole_number("seed", seed, least=0)
        self._sampler = sampler
        self._is_default = sampler is None
        self._founders = 0 if sampler is None else sampler.num_clients
        self._masses: FloatArray = np.zeros(0)  # the sampler's own client weights, up to a factor
        self._ids: dict[str, int] = {}
        self._met: BoolArray = np.zeros(0, dtype=bool)
        self._sizes = DataSizes(num_examples)

    @property
    def sampler(self) -> Sampler | None:
        """The sampler; None until the first round tells how many clients there are."""
        return self._sampler

    @property
    def identities(self) -> tuple[str, ...]:
        """Everybody ever seen; the place of an identity is its id in the sampler."""
        return tuple(self._ids)

    @property
    def met(self) -> int:
        """How many have replied at least once."""
        return int(self._met.sum())

    def draw(self, online: Iterable[str], reported: Mapping[str, float]) -> Drawn:
        """Draw from those online; newcomers join first."""
        names = list(online)
        sampler = self._admit([name for name in names if name not in self._ids], reported)
        available = np.sort(np.array([self._ids[name] for name in names], dtype=np.int64))
        probabilities = sampler.probabilities(available)
        total = self._sizes.total(available)
        everybody = len(available) == sampler.num_clients > sampler.cohort_size
        cohort = sampler.draw() if everybody else sampler.draw(available=available)
        known = self.identities
        drawn = tuple(known[client] for client in cohort.clients)
        return Drawn(cohort, drawn, available, probabilities / probabilities.sum(), total)

    def given_size(self, drawn: Drawn, place: int) -> float | None:
        """The size that was given for this client of the cohort, if one was."""
        return self._sizes.given(int(drawn.cohort.clients[place]))

    def settle(self, drawn: Drawn, norms: FloatArray, sizes: FloatArray) -> Settled:
        """Learn from a round; ``norms`` and ``sizes`` are aligned with its cohort, nan for who is silent."""
        heard = ~np.isnan(norms)
        replied = drawn.cohort.replied(heard)
        self._sizes.meet(replied.clients, sizes[heard], replied.weights)
        self._met[replied.clients] = True
        total = drawn.total
        if np.isnan(total) or len(drawn.cohort) == len(drawn.available):  # then no draw decides about it
            total = self._sizes.total(drawn.available)
        shares = sizes[heard] / total if total > 0.0 else np.zeros(len(replied))
        sampler = self._drawn_from()
        told = np.full(len(norms), np.nan)
        told[heard] = norms[heard] * shares / self._own_weights(sampler, replied.clients)
        sampler.observe(drawn.cohort, told)
        raised = len(drawn.cohort) / max(len(replied), 1)
        return Settled(replied, shares, norms[heard], raised / total if total > 0.0 else 0.0)

    def _admit(self, newcomers: list[str], reported: Mapping[str, float]) -> Sampler:
        newcomers = sorted(newcomers, key=natural_order)
        first = len(self._ids)
        for name in newcomers:
            self._ids[name] = len(self._ids)
        self._met = np.concatenate([self._met, np.zeros(len(newcomers), dtype=bool)])
        self._sizes.join(newcomers, reported)
        if self._sampler is None:
            self._founders = len(newcomers)
            self._masses = self._sizes.known_shares(np.arange(self._founders))
            self._sampler = self._build()
        beyond = len(self._ids) - self._sampler.num_clients
        if beyond > 0:
            self._add(self._sampler, np.arange(max(first, len(self._ids) - beyond), len(self._ids)))
        return self._sampler

    def _build(self) -> Sampler:
        alike = bool(np.all(self._masses == self._masses[0]))
        weights = None if alike else self._masses[: self._founders]
        return default_sampler(self._founders, self._cohort_size, client_weights=weights, seed=self._seed)

    def _add(self, sampler: Sampler, newcomers: IntArray) -> None:
        add_clients = getattr(sampler, "add_clients", None)
        if add_clients is None:
            raise ConfigurationError(
                f"sampler must have add_clients, or be built for all clients that ever appear, "
                f"got one for {sampler.num_clients} and {len(newcomers)} more"
            )
        if not self._is_default:
            add_clients(len(newcomers))
            return
        masses = self._sizes.relative_sizes(newcomers, np.arange(self._founders)) / self._founders
        add_clients(masses, client_weights=masses)
        self._masses = np.concatenate([self._masses, masses])

    def _own_weights(self, sampler: Sampler, clients: IntArray) -> FloatArray:
        """The client weights that the sampler itself multiplies norms by; 1 for one that it leaves out."""
        if not self._is_default:
            return np.full(len(clients), 1.0 / sampler.num_clients)
        weights = self._masses[clients] / self._masses.sum()
        return np.where(weights > 0.0, weights, 1.0)

    def _drawn_from(self) -> Sampler:
        if self._sampler is None:
            raise ConfigurationError("a round must be drawn before it is settled")
        return self._sampler

    # State -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a continued run needs."""
        sampler = {} if self._sampler is None else self._sampler.state_dict()
        return {
            "founders": self._founders,
            "identities": np.array(self.identities, dtype=np.str_),
            "met": self._met.copy(),
            "masses": self._masses.copy(),
            **self._sizes.state(),
            **{SAMPLER + name: value for name, value in sampler.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` gave."""
        names = np.asarray(state.get("identities"))
        if names.dtype.kind != "U" or names.ndim != 1 or len(set(names.tolist())) != len(names):
            raise StateError(f"state must hold 'identities', different strings, got {names!r}")
        identities: list[str] = names.tolist()
        met = array(state, "met", np.bool_, (len(identities),))
        founders = int(scalar(state, "founders"))
        kept = {name.removeprefix(SAMPLER): state[name] for name in state if name.startswith(SAMPLER)}
        if kept:
            self._founders, self._masses = founders, array(state, "masses", np.float64, (None,))
            sampler = self._build() if self._is_default else self._drawn_from()
            sampler.load_state_dict(kept)
            self._sampler = sampler
        self._sizes.restore(state, identities)
        self._founders, self._met = founders, met
        self._ids = {name: place for place, name in enumerate(identities)}
