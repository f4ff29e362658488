"""The draw of a round among identities: the sampler, who is who in it, and how much data each has."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import ConfigurationError, StateError
from sortition.core.protocols import Sampler
from sortition.core.state import array, scalar, text
from sortition.core.types import BoolArray, FloatArray, IntArray
from sortition.core.validation import whole_number
from sortition.integrations.flower.identities import natural_order
from sortition.integrations.flower.ledgers import CLIENTS, STATE, founding, ledger_file, left_at
from sortition.integrations.flower.sizes import DataSizes
from sortition.ledger import RecordedSampler, open_run
from sortition.samplers.empirical_bayes import default_sampler

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
    told: FloatArray
    """What the sampler is to hear, aligned with the cohort."""


class ClientPool:
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
        ledger: str | os.PathLike[str] | None = None,
    ) -> None:
        if (sampler is None) == (cohort_size is None):
            raise ConfigurationError(
                "one of cohort_size and sampler must be given, got "
                + ("neither" if sampler is None else "both")
            )
        if not (sampler is None or isinstance(sampler, Sampler)):
            raise ConfigurationError(f"sampler must be a sampler, got {sampler!r}")
        if sampler is not None and sampler.state_dict().get("config.client_weights", "uniform") != "uniform":
            raise ConfigurationError(
                "sampler must be built without client_weights, since the data sizes come from the clients or "
                "from num_examples, got one that has its own"
            )
        self._cohort_size = 0 if cohort_size is None else whole_number("cohort_size", cohort_size, least=1)
        self._seed = whole_number("seed", seed, least=0)
        self._sampler = sampler
        self._is_default = sampler is None
        self._initial_clients = 0 if sampler is None else sampler.num_clients
        self._masses: FloatArray = np.zeros(0)  # the sampler's own client weights, up to a factor
        self._ids: dict[str, int] = {}
        self._met: BoolArray = np.zeros(0, dtype=bool)
        self._sizes = DataSizes(num_examples)
        self._ledger = None if ledger is None else ledger_file(ledger)
        self._run: RecordedSampler | None = None
        self._fresh = copy.deepcopy(sampler) if ledger is not None else None

    @property
    def sampler(self) -> Sampler | None:
        """The sampler; None until the first round tells how many clients there are."""
        return self._sampler if self._run is None else self._run

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
        everybody = len(available) == sampler.num_clients > sampler.cohort_size
        probabilities = sampler.probabilities(available)
        cohort = sampler.draw() if everybody else sampler.draw(available=available)
        if self._run is not None:  # it may be a cohort that was drawn before a crash
            available = np.union1d(available, cohort.clients)
            probabilities = sampler.probabilities(available)
        total = self._sizes.total(available)
        known = self.identities
        drawn = tuple(known[client] for client in cohort.clients)
        return Drawn(cohort, drawn, available, probabilities / probabilities.sum(), total)

    def given_size(self, drawn: Drawn, place: int) -> float | None:
        """The size that was given for this client of the cohort, if one was."""
        return self._sizes.given(int(drawn.cohort.clients[place]))

    def giant(self) -> str | None:
        """Who says to have more examples than all others known together."""
        client = self._sizes.giant()
        return None if client is None else self.identities[client]

    def settle(self, drawn: Drawn, norms: FloatArray, sizes: FloatArray) -> Settled:
        """Weigh a round; ``norms`` and ``sizes`` are aligned with its cohort, nan for who is silent."""
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
        raised = len(drawn.cohort) / max(len(replied), 1)
        return Settled(replied, shares, norms[heard], raised / total if total > 0.0 else 0.0, told)

    def learn(self, drawn: Drawn, settled: Settled, state: Callable[[], Mapping[str, Any]]) -> None:
        """Let the sampler learn; with a ledger, ``state`` is on disk before it does."""
        if self._run is not None:
            self._run.attach(drawn.cohort.round_index, STATE, state())
        self._drawn_from().observe(drawn.cohort, settled.told)

    def _admit(self, newcomers: list[str], reported: Mapping[str, float]) -> Sampler:
        newcomers = sorted(newcomers, key=natural_order)
        for name in newcomers:
            self._ids[name] = len(self._ids)
        self._met = np.concatenate([self._met, np.zeros(len(newcomers), dtype=bool)])
        self._sizes.join(newcomers, reported)
        if self._sampler is None:
            self._initial_clients = len(newcomers)
            self._masses = self._sizes.known_shares(np.arange(self._initial_clients))
            self._sampler = self._build(self._initial_clients, self._masses)
        if self._ledger is not None and self._run is None:
            if self._ledger.exists():
                raise ConfigurationError(f"start must be called to continue the run in {self._ledger}")
            self._open_run()
        sampler = self._drawn_from()
        if self._is_default and len(self._ids) > len(self._masses):
            beyond = np.arange(len(self._masses), len(self._ids))
            masses = (
                self._sizes.relative_sizes(beyond, np.arange(self._initial_clients)) / self._initial_clients
            )
            self._masses = np.concatenate([self._masses, masses])
        if self._run is not None and newcomers:
            self._run.attach(self._run.round_index, CLIENTS, self.state(sampler=False))
        if len(self._ids) > sampler.num_clients:
            self._add(sampler, np.arange(sampler.num_clients, len(self._ids)))
        return sampler

    def _build(self, founders: int, masses: FloatArray) -> Sampler:
        alike = bool(np.all(masses[:founders] == masses[0]))
        weights = None if alike else masses[:founders]
        return default_sampler(founders, self._cohort_size, client_weights=weights, seed=self._seed)

    def _add(self, sampler: Sampler, newcomers: IntArray) -> None:
        add_clients = getattr(sampler, "add_clients", None)
        if add_clients is None:
            raise ConfigurationError(
                f"sampler must have add_clients, or be built for all clients that ever appear, "
                f"got one for {sampler.num_clients} and {len(newcomers)} more"
            )
        if self._is_default:
            add_clients(self._masses[newcomers], client_weights=self._masses[newcomers])
        else:
            add_clients(len(newcomers))

    def _own_weights(self, sampler: Sampler, clients: IntArray) -> FloatArray:
        """The client weights that the sampler itself multiplies norms by; 1 for one that it leaves out."""
        if not self._is_default:
            return np.full(len(clients), 1.0 / sampler.num_clients)
        weights = self._masses[clients] / self._masses.sum()
        return np.where(weights > 0.0, weights, 1.0)

    def _drawn_from(self) -> Sampler:
        sampler = self._sampler if self._run is None else self._run
        if sampler is None:
            raise ConfigurationError("a round must be drawn before it is settled")
        return sampler

    # State -------------------------------------------------------------------------------------------

    def state(self, *, sampler: bool = True) -> dict[str, Any]:
        """What a continued run needs; without the ``sampler`` where a ledger has it."""
        kept = self.sampler.state_dict() if sampler and self.sampler is not None else {}
        return {
            "founders": self._initial_clients,
            "identities": json.dumps(self.identities),
            "met": self._met.copy(),
            "masses": self._masses.copy(),
            **self._sizes.state(),
            **{SAMPLER + name: value for name, value in kept.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` gave."""
        identities = names_of(state, "identities")
        met = array(state, "met", np.bool_, (len(identities),))
        founders = int(scalar(state, "founders"))
        masses = array(state, "masses", np.float64, (None,))
        sizes = self._sizes.restored(state, identities)
        kept = {name.removeprefix(SAMPLER): state[name] for name in state if name.startswith(SAMPLER)}
        if kept:
            sampler = self._build(founders, masses) if self._is_default else self._drawn_from()
            sampler.load_state_dict(kept)
            self._sampler = sampler
        self._sizes, self._met = sizes, met
        self._initial_clients, self._masses = founders, masses
        self._ids = {name: place for place, name in enumerate(identities)}

    # The ledger --------------------------------------------------------------------------------------

    def refuse_ledger(self) -> None:
        """Raise if there is one: it would begin with a sampler that doesn't know what the state knows."""
        if self._ledger is not None:
            raise ConfigurationError(
                f"ledger must be None where a state is loaded, since it keeps its own, got {self._ledger}"
            )

    def resume(self) -> dict[str, Any] | None:
        """Continue the run in the ledger, if there is one: the state that ``learn`` kept last."""
        if self._run is not None:  # rounds were driven one by one
            self.close()
        if self._ledger is None or not self._ledger.exists():
            return None
        if self._is_default:
            self._initial_clients, self._masses = founding(self._ledger)
            self._sampler = self._build(self._initial_clients, self._masses)
        state, newest = left_at(self._open_run(), self._ledger)
        if newest is not None:
            self.restore(newest)
        return state

    def close(self) -> None:
        """Let go of the ledger."""
        run, self._run = self._run, None
        if run is not None:
            try:
                self._sampler = run.sampler
            finally:
                run.close()

    def _open_run(self) -> RecordedSampler:
        """The ledger makes its samplers itself, from the one that was given or as the default is built."""
        if self._ledger is None or self._sampler is None:
            raise ConfigurationError("a ledger must be given, and a sampler built, before a run is opened")
        fresh, founders, masses = self._fresh, self._initial_clients, self._masses.copy()

        def make() -> Sampler:
            return self._build(founders, masses) if fresh is None else copy.deepcopy(fresh)

        self._run = open_run(self._ledger, make)
        return self._run


def names_of(state: Mapping[str, Any], name: str) -> list[str]:
    """A list of different strings out of a state."""
    try:
        names = json.loads(str(text(state, name)))
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise StateError(f"state must hold {name!r}, a list of strings, got {state.get(name)!r}")
    if len(set(names)) != len(names):
        raise StateError(f"state must hold {name!r}, different strings, got some twice")
    return names
