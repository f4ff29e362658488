"""What stands between a client's report and what is learnt from it: noise, clip, and ceilings."""

from __future__ import annotations

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
    check_norms,
    client_ids,
    distribution,
    masses_of,
    one_each,
    one_of,
    whole_number,
)
from sortition.engine.capped import Capped
from sortition.engine.clients import Roster
from sortition.engine.drawing import Distribution, draw_cohort, mass_without
from sortition.engine.feedback import all_replied, log_feedback
from sortition.engine.mixture import VANISHING
from sortition.samplers.guard import Guard, GuardState, Replies, Suspect, WeightsOf
from sortition.samplers.privacy import Noise, NormPrivacy, PrivacySpent


class Defences:
    """The guard and the privacy of one sampler; either may be absent."""

    def __init__(self, guard: Guard | None, privacy: NormPrivacy | None, seed: int) -> None:
        if not (guard is None or isinstance(guard, Guard)):
            raise ConfigurationError(f"guard must be a Guard or None, got {guard!r}")
        if not (privacy is None or isinstance(privacy, NormPrivacy)):
            raise ConfigurationError(f"privacy must be a NormPrivacy or None, got {privacy!r}")
        self._watch = None if guard is None else GuardState(guard)
        self._noise = None if privacy is None else Noise(privacy, seed)

    @property
    def guarded(self) -> bool:
        """Whether there is a guard."""
        return self._watch is not None

    @property
    def private(self) -> bool:
        """Whether norms are noised."""
        return self._noise is not None

    def noised(self, cohort: Cohort, norms: FloatArray) -> FloatArray:
        """The norms that may be used at all; nan for no reply."""
        return norms if self._noise is None else self._noise.apply(cohort, norms)

    def refuse_raw_norms(self, method: str) -> None:
        """Raise a ConfigurationError where norms must be noised, which those given to ``method`` are not."""
        if self._noise is not None:
            raise ConfigurationError(
                f"{method} must not be used with privacy: its norms would be neither noised nor accounted for"
            )

    def clipped(self, heard: Cohort, norms: FloatArray) -> FloatArray:
        """The norms as they may count."""
        return norms if self._watch is None else self._watch.clip(heard, norms)

    def judged_trial(self) -> Replies:
        """When the first replies can be judged, and lies were among them: all of them as they may count."""
        return [] if self._watch is None else self._watch.judge_trial()

    def moderated(self, norms: FloatArray) -> FloatArray:
        """Norms of a pre-training pass as they may count, by themselves alone."""
        return norms if self._watch is None else self._watch.moderate(norms)

    def over(
        self,
        distribution: Distribution,
        num_clients: int,
        weights_of: WeightsOf,
        generator: np.random.Generator | None = None,
    ) -> Distribution:
        """What to draw from instead of ``distribution``; ``weights_of`` tells client weights."""
        if self._watch is None:
            return distribution
        shown = self._watch.over(distribution, num_clients, weights_of)
        if generator is not None and isinstance(shown, Capped):
            return shown.with_generator(generator)
        return shown

    def hold(
        self,
        clients: IntArray,
        before: FloatArray,
        distribution: Distribution,
        num_clients: int,
        weights_of: WeightsOf,
        draws: int,
    ) -> None:
        """Limit the rise of ``clients``, who were learnt from after so many ``draws``."""
        if self._watch is not None:
            self._watch.hold(clients, before, distribution, num_clients, weights_of, draws)

    def rescale(self, factor: float) -> None:
        """Clients came or left, and everybody's probability was multiplied by ``factor``."""
        if self._watch is not None:
            self._watch.rescale(factor)

    def forget(self, clients: IntArray) -> None:
        """``clients`` have left."""
        if self._watch is not None:
            self._watch.forget(clients)

    @property
    def norm_bound(self) -> float:
        """What a norm may be by those heard of late."""
        return np.inf if self._watch is None else self._watch.norm_bound

    @property
    def on_trial(self) -> bool:
        """Whether the guard has too few replies to judge anybody by."""
        return self._watch is not None and self._watch.on_trial

    def suspects(self) -> list[Suspect]:
        """The clients that hit the clip, the most frequent first."""
        return [] if self._watch is None else self._watch.suspects()

    def privacy_spent(self, delta: float) -> PrivacySpent:
        """What the replies so far have cost."""
        if self._noise is None:
            raise ConfigurationError("privacy must be given to the sampler to be accounted for, got none")
        return self._noise.spent(delta)

    def config(self) -> dict[str, str]:
        """The settings, in words."""
        return {
            "guard": "none" if self._watch is None else repr(self._watch.guard),
            "privacy": "none" if self._noise is None else repr(self._noise.privacy),
        }

    def state(self) -> dict[str, Any]:
        """All that they remember."""
        watch = {} if self._watch is None else self._watch.state()
        return {**watch, **({} if self._noise is None else self._noise.state())}

    def restored(self, state: Mapping[str, Any], ids: int) -> Defences:
        """These defences with the memory of ``state``, of a sampler with so many ids."""
        defences = Defences(None, None, 0)
        defences._watch = None if self._watch is None else self._watch.restored(state, ids)
        defences._noise = None if self._noise is None else self._noise.restored(state)
        return defences


class Members(ABC):
    """The part of a sampler that knows who is there."""

    _initial_clients: int
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
        average, room = 1.0 / self._initial_clients, MOST_CLIENTS - self._roster.ids
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
        before, shown = self._weights.total, self._effective_distribution()
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
            self._defences.rescale(
                1.0 / max(mass_without(self._effective_distribution(), leaving), VANISHING)
            )
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

    def _effective_distribution(self, generator: np.random.Generator | None = None) -> Distribution:
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


STATE_VERSION = 3
LARGEST_SEED = 2**64 - 1
Config = dict[str, int | float | str]


class Saved(Members):
    """The part of a sampler that can be stored, and continued from what was stored."""

    _generator: RoundGenerator
    _round_index: int
    _open: dict[int, int]  # round -> ticket, of the cohorts that await feedback
    _latest: Cohort | None
    _identity: int | None
    _begun: bool = False

    def _config(self) -> Config:
        """The settings that a state belongs to, beyond those of every sampler."""
        return {}

    def _state(self) -> dict[str, Any]:
        """What was learnt, as plain arrays and scalars."""
        return {}

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``_state`` gave. Where it raises, it is called again, with what was there before."""

    @property
    def is_new(self) -> bool:
        """Whether nothing has happened: no draw, nothing learnt or loaded, nobody joined or left."""
        rosters = (self._roster, self._weights)
        same = all(roster.ids == self._initial_clients and not roster.anybody_left for roster in rosters)
        return same and not self._begun and self._round_index == 0

    def setting(self) -> Config:
        """What samplers that learn from the same cohorts must agree in."""
        config = self._all_config()
        return {name: config[name] for name in ("num_clients", "cohort_size", "client_weights")}

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
        the state. On a StateError nothing has changed.
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
        roster = self._roster.restored(state, "")
        defences = self._defences.restored(state, roster.ids)
        before, learnt = copy(self._roster), self._state()
        self._roster.become(roster)
        try:
            self._restore(state)
        except Exception:
            self._roster.become(before)
            self._restore(learnt)
            raise
        self._weights, self._defences = weights, defences
        self._generator, self._identity, self._latest = RoundGenerator(seed), None, None
        self._round_index, self._begun = round_index, True
        self._open = dict(zip(rounds.tolist(), tickets.tolist(), strict=True))

    # Details -----------------------------------------------------------------------------------------

    def _name(self) -> int:
        """A number that stands for this sampler on its tickets."""
        if self._identity is None:
            name = repr((type(self).__name__, self._generator.seed, self._all_config()))
            self._identity = zlib.crc32(name.encode())
        return self._identity

    def _all_config(self) -> Config:
        return {
            "num_clients": self._initial_clients,
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


class Common(TypedDict, total=False):
    """The keywords that every sampler takes."""

    num_clients: Required[int]
    """M."""
    cohort_size: Required[int]
    """K, the draws of a round."""
    client_weights: ArrayLike | None
    """lambda, what each client counts for in the aggregate; 1/M each if not given."""
    design: Design
    """How a cohort is drawn from the probabilities: with replacement, unless said otherwise."""
    seed: int
    """Of all randomness of a run."""
    guard: Guard | None
    """Defences against clients that lie about their norms; none, except in empirical Bayes."""
    privacy: NormPrivacy | None
    """Clip and noise for the norms before anything is learnt from them; none by default."""


class BaseSampler(Saved):
    """Base of our samplers. A subclass builds a distribution, and says how feedback changes it.

    It sets ``_distribution``, on ``_roster``, and implements ``_learn``, ``_start_anew``, ``_config``,
    ``_state`` and ``_restore``; nothing else needs to know how a cohort is drawn, recognised, or weighted.
    ``membership`` says how clients join and leave, ``state`` how a run is stored and continued.
    """

    built_with: dict[str, Any]
    """The keywords that the sampler was built with: a ledger can build it again."""

    def __new__(cls, *_: Any, **keywords: Any) -> Self:
        sampler = super().__new__(cls)
        sampler.built_with = {  # the caller may go on with lists and arrays of its own
            name: copy(value) if isinstance(value, (list, np.ndarray)) else value
            for name, value in keywords.items()
        }
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
        self._initial_clients = whole_number("num_clients", num_clients, least=1, most=MOST_CLIENTS)
        self._cohort_size = whole_number("cohort_size", cohort_size, least=1, most=MOST_CLIENTS)
        one_of("design", design, DESIGNS)
        if design != "with_replacement" and cohort_size > num_clients:
            raise ConfigurationError(
                f"cohort_size must be at most num_clients ({num_clients}) for design {design!r}, "
                f"got {cohort_size}"
            )
        self._design = design
        self._given_weights = None
        if client_weights is not None:
            self._given_weights = distribution("client_weights", client_weights, self._initial_clients)
        self._weights = Roster(self._initial_clients, self._given_weights)
        self._roster = Roster(self._initial_clients, None)  # subclasses may have another
        self._generator = RoundGenerator(whole_number("seed", seed, least=0, most=LARGEST_SEED))
        self._defences = Defences(guard, privacy, self._generator.seed)
        self._round_index = 0
        self._open = {}
        self._latest = None
        self._identity = None

    @abstractmethod
    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        """Take in the feedback of those who replied: at least one, weights mean-one."""

    @abstractmethod
    def _start_anew(self) -> None:
        """Forget what was learnt, but not who is there: where replies on trial were lies."""

    def learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        """Learn from a cohort that somebody else drew: its weights say how."""
        self._begun = True
        self._learn(cohort, log_feedback)

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
            weighed = draw_cohort(
                self._design,
                self._effective_distribution(generator),
                self.num_clients,
                self._cohort_size,
                generator,
            )
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
        values = one_each("norms", norms, len(cohort), "each client of the cohort")
        complete = all_replied(values)
        if not complete:
            check_norms("norms", values)
        values = self._defences.noised(cohort, values)
        heard = cohort
        if not complete:
            replied = ~np.isnan(values)
            heard, values = cohort.replied(replied), values[replied]
        if self._roster.anybody_left:
            heard, values = self._of_those_here(heard, values)
        if len(heard):
            if self._defences.guarded:
                self._learn_guarded(heard, values)
            else:
                self._learn(heard, log_feedback(self._weights, heard.clients, values))
        del self._open[cohort.round_index]

    def probabilities(self, clients: ArrayLike | None = None) -> FloatArray:
        """The probabilities of the next draw: all of them, by id, or those of ``clients``.

        Who has left has probability 0.
        """
        if clients is None:
            return self._effective_distribution().everybody()
        return self._effective_distribution().look_up(client_ids("clients", clients, self._roster.ids))

    # Hostile clients ---------------------------------------------------------------------------------

    @property
    def norm_bound(self) -> float:
        """What a norm may be by those heard of late; inf where nothing is known or nobody judges.

        In feedback it counts for no more, but for replies on trial. A server that clips the updates
        themselves at this bound limits what a client can do to the model.
        """
        return self._defences.norm_bound

    @property
    def on_trial(self) -> bool:
        """Whether the guard has heard too few replies to judge anybody by: nobody is a suspect yet."""
        return self._defences.on_trial

    def suspects(self) -> list[Suspect]:
        """The clients whose norms hit the clip of the guard, the most frequent first."""
        return self._defences.suspects()

    @property
    def private(self) -> bool:
        """Whether norms are noised before anything is learnt from them."""
        return self._defences.private

    def privacy_spent(self, delta: float = 1e-5) -> PrivacySpent:
        """What the replies so far have cost in (epsilon, delta)-differential privacy."""
        return self._defences.privacy_spent(delta)

    # Details -----------------------------------------------------------------------------------------

    def _learn_guarded(self, heard: Cohort, norms: FloatArray) -> None:
        """Learn what the norms may count for, and hold down whoever would rise too fast by it."""
        shown, reporters = self._effective_distribution(), heard.clients
        norms = self._defences.clipped(heard, norms)
        again = self._defences.judged_trial()
        if again:  # in the place of all that was learnt so far
            again = [self._of_those_here(cohort, values) for cohort, values in again]
            reporters = np.unique(np.concatenate([reporters, *(cohort.clients for cohort, _ in again)]))
        before = shown.look_up(reporters)
        if again:
            self._start_anew()
        for cohort, values in (*again, (heard, norms)):
            if len(cohort):
                self._learn(cohort, log_feedback(self._weights, cohort.clients, values))
        self._defences.hold(
            reporters,
            before,
            self._distribution,
            self.num_clients,
            self._weights_of,
            draws=self._round_index,
        )

    def _of_those_here(self, cohort: Cohort, norms: FloatArray) -> tuple[Cohort, FloatArray]:
        """Without who has left."""
        here = self._roster.present(cohort.clients)
        return cohort.only(here), norms[here]

    def _draw_from(self, available: IntArray) -> Weighed:
        if len(available) <= self._cohort_size:
            ones = np.ones(len(available))
            return available, ones.astype(np.int64), ones, ones
        restricted = restrict(self._effective_distribution().look_up(available))
        chosen, counts, probabilities, weights = draw_dense(
            self._design, restricted, self._cohort_size, self._generator.of_round(self._round_index)
        )
        return available[chosen], counts, probabilities, weights

    def _available(self, values: ArrayLike) -> IntArray:
        ids = self._present_ids("available", values)
        if not len(ids):
            raise AvailabilityError("available must name at least one client, got none")
        return ids

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


class UnmovedSampler(BaseSampler):
    """Base of the samplers whose distribution does not follow feedback: given, or known otherwise."""

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        """Nothing to learn."""

    def _start_anew(self) -> None:
        """Nothing to forget."""
