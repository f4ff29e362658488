"""What every sampler does alike: rounds, tickets, silence, availability, membership and state."""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from typing import Any, Required, Self, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.designs import DESIGNS, Design, RoundGenerator, Weighed, draw_dense, restrict
from sortition.core.errors import AvailabilityError, CohortError, ConfigurationError, StateError
from sortition.core.state import array, count, text
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import (
    MOST_CLIENTS,
    client_ids,
    distribution,
    masses_of,
    norms_of,
    whole_number,
)
from sortition.engine.capped import Capped
from sortition.engine.drawing import Distribution, draw_cohort, mass_without
from sortition.engine.feedback import log_feedback
from sortition.engine.roster import Roster
from sortition.samplers.defences import Defences
from sortition.samplers.guard import Guard, Suspect
from sortition.samplers.privacy import NormPrivacy, PrivacySpent

STATE_VERSION = 1
LARGEST_SEED = 2**64 - 1
Config = dict[str, int | float | str]


class Common(TypedDict, total=False):
    """The keywords that every sampler takes."""

    num_clients: Required[int]
    cohort_size: Required[int]
    client_weights: ArrayLike | None
    design: Design
    seed: int
    guard: Guard | None
    privacy: NormPrivacy | None


class BaseSampler(ABC):
    """Base of our samplers. A subclass builds a distribution, and says how feedback changes it.

    It sets ``_distribution`` in its constructor, on ``_roster``, and implements ``_learn``, ``_config``,
    ``_state`` and ``_restore``; nothing else needs to know how a cohort is drawn, recognised, or weighted.
    """

    _distribution: Distribution
    built_with: dict[str, Any]
    """The keywords that the sampler was built with: a ledger can build it again."""

    def __new__(cls, *_: Any, **keywords: Any) -> Self:
        sampler = super().__new__(cls)
        sampler.built_with = keywords
        return sampler

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        client_weights: ArrayLike | None = None,
        design: Design = "with_replacement",
        seed: int = 0,
        guard: Guard | None = None,
        privacy: NormPrivacy | None = None,
    ) -> None:
        self._founders = whole_number("num_clients", num_clients, least=1, most=MOST_CLIENTS)
        self._cohort_size = whole_number("cohort_size", cohort_size, least=1)
        if design not in DESIGNS:
            raise ConfigurationError(f"design must be one of {', '.join(DESIGNS)}, got {design!r}")
        if design != "with_replacement" and cohort_size > num_clients:
            raise ConfigurationError(
                f"cohort_size must be at most num_clients ({num_clients}) for design {design!r}, "
                f"got {cohort_size}"
            )
        self._design: Design = design
        self._given_weights: FloatArray | None = None
        if client_weights is not None:
            self._given_weights = distribution("client_weights", client_weights, self._founders)
        self._weights = Roster(self._founders, self._given_weights)  # lambda
        self._roster = Roster(self._founders, None)  # the prior; subclasses may have another
        self._generator = RoundGenerator(whole_number("seed", seed, least=0, most=LARGEST_SEED))
        self._defences = Defences(guard, privacy, self._generator.seed)
        self._round_index = 0
        self._open: dict[int, int] = {}  # round -> ticket, of the cohorts that await feedback
        self._latest: Cohort | None = None
        self._identity: int | None = None

    # What a subclass says ----------------------------------------------------------------------------

    @abstractmethod
    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        """Take in the feedback of those who replied: at least one, weights mean-one."""

    def _config(self) -> Config:
        """The settings that a state belongs to, beyond those of every sampler."""
        return {}

    def _state(self) -> dict[str, Any]:
        """What was learnt, as plain arrays and scalars."""
        return {}

    def _restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - nothing learnt, nothing to restore
        """Take back what ``_state`` gave; on a StateError nothing has changed."""

    def _admit(self, masses: FloatArray, client_weights: FloatArray) -> IntArray:
        """Let newcomers into the distribution and give their ids."""
        return self._distribution.add(self._roster.unit * masses)

    def _membership_changed(self, weight_factor: float) -> None:  # noqa: B027 - most need not know
        """Clients joined or left, and every other client's lambda was multiplied by ``weight_factor``."""

    # What a portfolio needs to know ------------------------------------------------------------------

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

    def setting(self) -> Config:
        """What samplers that learn from the same cohorts must agree in."""
        config = self._all_config()
        return {name: config[name] for name in ("num_clients", "cohort_size", "client_weights")}

    def learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        """Learn from a cohort that somebody else drew: its weights say how."""
        self._learn(cohort, log_feedback)

    # The protocol ------------------------------------------------------------------------------------

    @property
    def num_clients(self) -> int:
        """M, the clients that can be drawn."""
        return self._roster.count

    @property
    def cohort_size(self) -> int:
        """K, the draws of a round."""
        return self._cohort_size

    @property
    def design(self) -> Design:
        """How a cohort is drawn from the probabilities."""
        return self._design

    @property
    def round_index(self) -> int:
        """The index that the next cohort will carry: the rounds drawn so far."""
        return self._round_index

    def draw(self, available: ArrayLike | None = None) -> Cohort:
        """Draw the next cohort, from everybody or from the client ids in ``available``.

        With ``available`` the distribution is restricted to these and rescaled; if they are at most K, all
        of them take part, with weight one (Appendix D.2).
        """
        if available is None:
            generator = self._generator.of_round(self._round_index)
            defended = self._defences.over(self._distribution, self.num_clients, generator)
            weighed = draw_cohort(self._design, defended, self.num_clients, self._cohort_size, generator)
        else:
            weighed = self._draw_from(self._available(available))
        for array_of_cohort in weighed:
            array_of_cohort.setflags(write=False)  # they are ours: no copy is needed
        cohort = Cohort(self._round_index, self._cohort_size, *weighed)
        ticket = cohort.checksum(self._name())
        object.__setattr__(cohort, "ticket", ticket)
        self._open[self._round_index] = ticket
        self._latest = cohort
        self._round_index += 1
        return cohort

    def observe(self, cohort: Cohort, norms: ArrayLike) -> None:
        """Learn from the update norms, aligned with ``cohort.clients``; nan means no reply.

        Feedback belongs to its cohort: it may come late, in any order, but once. Of clients who have left in
        the meantime nothing is learnt.
        """
        self._recognise(cohort)
        values = norms_of("norms", norms, len(cohort), "each client of the cohort")
        values = self._defences.noised(cohort, values)
        heard = cohort
        if len(values) and math.isnan(values.item(values.argmin())):  # nan is the least, if there is one
            replied = ~np.isnan(values)
            heard, values = cohort.replied(replied), values[replied]
        if self._roster.anybody_left:
            here = self._roster.present(heard.clients)
            heard, values = heard.only(here), values[here]
        if len(heard):
            values = self._defences.clipped(heard, values)
            before = self._shown().look_up(heard.clients) if self._defences.guarded else None
            self._learn(heard, log_feedback(self._weights, heard.clients, values))
            if before is not None:
                self._defences.hold(heard.clients, before, self._distribution, self.num_clients)
        del self._open[cohort.round_index]

    def probabilities(self, clients: ArrayLike | None = None) -> FloatArray:
        """The probabilities of the next draw: all of them, by id, or those of ``clients``.

        Who has left has probability 0.
        """
        if clients is None:
            return self._shown().everybody()
        return self._shown().look_up(client_ids("clients", clients, self._roster.ids))

    def client_weights(self, clients: ArrayLike | None = None) -> FloatArray:
        """lambda of all clients, by id, or of ``clients``; rescaled when clients join or leave."""
        if clients is None:
            return self._weights.masses(None) / self._weights.total
        return self._weights_of(client_ids("clients", clients, self._roster.ids))

    # Hostile clients ---------------------------------------------------------------------------------

    @property
    def norm_bound(self) -> float:
        """What a norm counts for at most in the next feedback; inf where nothing is known or clipped.

        A server that clips the updates themselves at this bound limits what a client can do to the model.
        """
        return self._defences.norm_bound

    def suspects(self) -> list[Suspect]:
        """The clients whose norms hit the clip of the guard, the most frequent first."""
        return self._defences.suspects()

    def privacy_spent(self, delta: float = 1e-5) -> PrivacySpent:
        """What the replies so far have cost in (epsilon, delta)-differential privacy."""
        return self._defences.privacy_spent(delta)

    # Joining and leaving -----------------------------------------------------------------------------

    def add_clients(self, clients: int | ArrayLike, *, client_weights: ArrayLike | None = None) -> IntArray:
        """Let clients join: so many of them, or one for each prior mass given. Returns their ids.

        Prior masses and ``client_weights`` are in the units of those that the sampler was built with, which
        summed to one; a newcomer has an average founder's of both, 1/M, unless it is given. The newcomers
        start like clients that were never drawn; for the others see ``remove_clients``.
        """
        average = 1.0 / self._founders
        if isinstance(clients, (int, np.integer)):
            newcomers = whole_number("clients", clients, least=1, most=MOST_CLIENTS - self._roster.ids)
            masses = np.full(newcomers, average)
        else:
            masses = masses_of("clients", clients)
        weights = np.full(len(masses), average)
        if client_weights is not None:
            weights = masses_of("client_weights", client_weights)
            if len(weights) != len(masses):
                raise ConfigurationError(
                    f"client_weights must have one entry for each of the {len(masses)} newcomers, "
                    f"got {len(weights)}"
                )
        before, shown = self._weights.total, self._shown()
        self._weights.add(self._weights.unit * weights)
        ids = self._admit(masses, weights)
        if self._defences.guarded:
            scale = shown.scale if isinstance(shown, Capped) else 1.0
            newcomers = scale * (1.0 / mass_without(self._distribution, ids) - 1.0)
            self._defences.rescale(1.0 / (1.0 + newcomers))
        self._membership_changed(before / self._weights.total)
        return ids

    def remove_clients(self, clients: ArrayLike) -> None:
        """Let clients leave for good; an id is not used again.

        The others keep their proportions exactly: the distribution is the old one, given that none of those
        who left is drawn. So nobody's probability falls, and no weight rises. MABS, VRB, K-Vib, Avare and
        empirical Bayes are formulas of all clients, a least share for each included; the formula applies
        again, to those who are left, with the next feedback. (Where a guard's ``largest_probability`` is
        reached, it goes before proportions.)
        """
        leaving = self._present_ids("clients", clients)
        if not len(leaving):
            return
        self.check_leaving(leaving)
        before = self._weights.total
        if self._defences.guarded:
            self._defences.rescale(1.0 / mass_without(self._shown(), leaving))
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
            mass = float(roster.masses(leaving).sum())
            if roster.total - mass <= 1e-12 * roster.total and not roster.masses(None).sum() > mass:
                raise ConfigurationError(f"clients must leave some {what} behind, got all of it")

    # State -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that a continued run needs: plain arrays, numbers and strings, nothing to unpickle."""
        weights = {f"weights.{name}": value for name, value in self._weights.state().items()}
        return {
            "kind": type(self).__name__,
            "version": STATE_VERSION,
            "seed": self._generator.seed,
            "round_index": self._round_index,
            "open_rounds": np.array(list(self._open.keys()), dtype=np.int64),
            "open_tickets": np.array(list(self._open.values()), dtype=np.int64),
            **{f"config.{name}": value for name, value in self._all_config().items()},
            **weights,
            **self._roster.state(),
            **self._defences.state(),
            **self._state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: the run then equals the unbroken one to the bit.

        The sampler must have been built with the settings of the one that was saved; the seed comes from
        the state.
        """
        if not isinstance(state, Mapping):
            raise StateError(f"state must be a mapping, as state_dict gives it, got {type(state).__name__}")
        kind, version = text(state, "kind"), text(state, "version")
        if kind != type(self).__name__:
            raise StateError(f"state must be of kind {type(self).__name__}, got {kind!r}")
        if version != STATE_VERSION:
            raise StateError(f"state must have version {STATE_VERSION}, got {version!r}")
        for name, value in self._all_config().items():
            saved = text(state, f"config.{name}")
            if saved != value:
                raise StateError(f"state must have been saved with {name} = {value!r}, got {saved!r}")
        seed, round_index = count(state, "seed"), count(state, "round_index")
        if seed > LARGEST_SEED or round_index > LARGEST_SEED:
            raise StateError(f"state must hold a seed and a round below 2^64, got {seed} and {round_index}")
        rounds = array(state, "open_rounds", np.int64, (None,))
        tickets = array(state, "open_tickets", np.int64, (len(rounds),))
        weights = self._weights.restored(state, "weights.")
        defences = self._defences.restored(state)
        roster = self._roster.restored(state, "")
        before = copy(self._roster)
        self._roster.become(roster)
        try:
            self._restore(state)
        except StateError:
            self._roster.become(before)
            raise
        self._weights, self._defences = weights, defences
        self._generator, self._identity, self._latest = RoundGenerator(seed), None, None
        self._round_index = round_index
        self._open = dict(zip(rounds.tolist(), tickets.tolist(), strict=True))

    # Details -----------------------------------------------------------------------------------------

    def _shown(self) -> Distribution:
        """The distribution that cohorts are drawn from: what was learnt, under the guard's ceilings."""
        return self._defences.over(self._distribution, self.num_clients)

    def _draw_from(self, available: IntArray) -> Weighed:
        if len(available) <= self._cohort_size:
            ones = np.ones(len(available))
            return available, ones.astype(np.int64), ones, ones
        restricted = restrict(self._shown().look_up(available))
        chosen, counts, probabilities, weights = draw_dense(
            self._design, restricted, self._cohort_size, self._generator.of_round(self._round_index)
        )
        return available[chosen], counts, probabilities, weights

    def _available(self, values: ArrayLike) -> IntArray:
        ids = self._present_ids("available", values)
        if not len(ids):
            raise AvailabilityError("available must name at least one client, got none")
        return ids

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

    def _recognise(self, cohort: Cohort) -> None:
        if not isinstance(cohort, Cohort):
            raise CohortError(f"cohort must be a Cohort that this sampler drew, got {type(cohort).__name__}")
        if not isinstance(cohort.round_index, (int, np.integer)):
            raise CohortError(f"cohort must have a whole round_index, got {cohort.round_index!r}")
        ticket = self._open.get(cohort.round_index)
        if ticket is None and 0 <= cohort.round_index < self._round_index:
            raise CohortError(
                f"cohort must await feedback, but round {cohort.round_index} has had its feedback already"
            )
        if cohort is self._latest:
            return  # the very one, and it can't be changed
        if ticket is None or cohort.ticket != ticket or cohort.checksum(self._name()) != ticket:
            raise CohortError(
                f"cohort must be one that this sampler drew, unchanged (with nan for the silent), "
                f"got one of round {cohort.round_index} that it does not know"
            )

    def _name(self) -> int:
        """A number that stands for this sampler on its tickets."""
        if self._identity is None:
            name = repr((type(self).__name__, self._generator.seed, self._all_config()))
            self._identity = zlib.crc32(name.encode())
        return self._identity

    def _all_config(self) -> Config:
        return {
            "num_clients": self._founders,
            "cohort_size": self._cohort_size,
            "design": self._design,
            "client_weights": fingerprint(self._given_weights),
            **self._defences.config(),
            **self._config(),
        }


def fingerprint(values: FloatArray | None) -> str:
    """What a state keeps of an array that was given: enough to notice another one."""
    if values is None:
        return "uniform"
    return f"{len(values)} values, crc32 {zlib.crc32(np.ascontiguousarray(values).data):08x}"


def require_support(name: str, masses: FloatArray, client_weights: FloatArray | None) -> None:
    """A client that counts must be possible to draw."""
    counts = np.ones(len(masses)) if client_weights is None else client_weights
    missing = np.flatnonzero((masses == 0.0) & (counts > 0.0))
    if len(missing):
        raise ConfigurationError(
            f"{name} must be above 0 for every client with a weight, or the aggregate is biased, "
            f"got 0 for client {missing[0]}"
        )
