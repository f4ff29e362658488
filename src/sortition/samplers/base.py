"""The whole round of a sampler in one place: draw, observe, join and leave, save and continue."""

from __future__ import annotations

import inspect
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.designs import DESIGNS, Design, RoundGenerator, Weighed, restrict
from sortition.core.errors import AvailabilityError, CohortError, ConfigurationError, StateError
from sortition.core.guard_settings import Guard, Suspect
from sortition.core.state import array, check, count, text
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import (
    MOST_CLIENTS,
    NORMS,
    check_norms,
    client_ids,
    distribution,
    masses_of,
    named_keywords,
    norms_of,
    one_each,
    one_of,
    require_support,
    whole_number,
)
from sortition.core.variance import log_feedback as log_feedback_of
from sortition.engine.capped import Capped
from sortition.engine.clients import Roster, all_known, all_replied
from sortition.engine.compiling import tell_who_waits
from sortition.engine.drawing import Distribution, draw_cohort, draw_dense
from sortition.samplers.guard import GuardState, Replies
from sortition.samplers.privacy import Noise, NormPrivacy, PrivacySpent

STATE_VERSION = 10
LARGEST_SEED = 2**64 - 1
LARGEST_ROUND = 2**62
SUMS_TO_ONE = 1e-6
"""How far from one the probabilities of a state may sum to."""
NEED_K_CLIENTS = ("without_replacement", "independent")
"""Designs that make no sense with fewer than K clients; with a fixed size, all of them take part then."""


KEYWORDS = """What every sampler takes; the class says what is its own.

num_clients: M.
cohort_size: K, the draws of a round.
client_weights: lambda, what each client counts for in the aggregate; 1/M each if not given.
prior: the distribution of a learner before it has learnt anything, and of its exploration: what is known of
    the norms beforehand, times lambda. Uniform if not given; for empirical Bayes it then follows lambda. A
    portfolio has none: each of its experts has its own.
design: how a cohort is drawn from the probabilities.
    "fixed_size": exactly K distinct clients, never more variance than with replacement;
    "with_replacement": K draws, the same client perhaps several times, as in the paper;
    "without_replacement": K distinct clients, one after another, each from those left;
    "independent": a coin for each client; K on average, and possibly none.
seed: of all randomness of a run.
guard: a Guard against clients that lie about their norms, or None.
privacy: a NormPrivacy that clips and noises the norms before anything is learnt from them, or None.
"""


class BaseSampler(ABC):
    """Base of the library's samplers: everything but what is learnt.

    A subclass implements four methods. ``_begin`` builds ``_distribution`` on ``_roster``, with nothing
    learnt. ``_learn`` changes it by the feedback of a cohort. ``_state`` and ``_restore`` save what was
    learnt. Its constructor takes every keyword by name, adds its own to ``settings``, and ends in
    ``self._begin()``. For a sampler of your own, ``DenseSampler`` asks for less.

    ``KEYWORDS`` says what the keywords of every sampler mean.
    """

    settings: dict[str, Any]
    """The keywords that the sampler was built with: ``type(sampler)(**sampler.settings)`` builds it again."""

    _distribution: Distribution
    """What was learnt; cohorts are drawn from it, limited by the guard."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" in cls.__dict__:  # an unknown keyword is an error with the nearest right one
            cls.__init__ = named_keywords(cls.__init__)  # type: ignore[method-assign]
            cls.__init__.__doc__ = cls.__init__.__doc__ or KEYWORDS  # for help()

    def __init__(
        self,
        num_clients: int,
        cohort_size: int,
        client_weights: ArrayLike | None = None,
        design: Design = "with_replacement",
        seed: int = 0,
        guard: Guard | None = None,
        privacy: NormPrivacy | None = None,
    ) -> None:
        tell_who_waits()
        self._initial_clients = whole_number("num_clients", num_clients, least=1, most=MOST_CLIENTS)
        self._cohort_size = whole_number("cohort_size", cohort_size, least=1, most=MOST_CLIENTS)
        one_of("design", design, DESIGNS)
        if design in NEED_K_CLIENTS and cohort_size > num_clients:
            raise ConfigurationError(
                f"cohort_size must be at most num_clients ({num_clients}) for design {design!r}, "
                f"got {cohort_size}"
            )
        if not (guard is None or isinstance(guard, Guard)):
            raise ConfigurationError(f"guard must be a Guard or None, got {guard!r}")
        if not (privacy is None or isinstance(privacy, NormPrivacy)):
            raise ConfigurationError(f"privacy must be a NormPrivacy or None, got {privacy!r}")
        self._design: Design = design
        self._given_weights: FloatArray | None = None
        if client_weights is not None:
            self._given_weights = distribution("client_weights", client_weights, self._initial_clients)
        self._weights = Roster(self._initial_clients, self._given_weights)  # lambda
        self._roster = Roster(self._initial_clients, None)  # the prior; a subclass may have another
        self._generator = RoundGenerator(whole_number("seed", seed, least=0, most=LARGEST_SEED))
        self._guard = None if guard is None else GuardState(guard, self._initial_clients)
        self._noise = None if privacy is None else Noise(privacy, self._generator.seed)
        self._round_index = 0
        self._open: dict[int, int] = {}  # round -> ticket, of the cohorts that await feedback
        self._identity: int | None = None
        self._begun = False
        self._common_settings = {
            "num_clients": self._initial_clients,
            "cohort_size": self._cohort_size,
            "client_weights": self._given_weights,
            "design": design,
            "seed": self._generator.seed,
            "guard": guard,
            "privacy": privacy,
        }
        keywords = inspect.signature(type(self)).parameters  # a subclass need not take all of them
        self.settings = {name: value for name, value in self._common_settings.items() if name in keywords}

    # What a sampler has to say -----------------------------------------------------------------------

    @abstractmethod
    def _begin(self) -> None:
        """Build the distribution on the roster, with nothing learnt."""

    @abstractmethod
    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        """Learn from the feedback of the clients that replied: at least one, with mean-one weights."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """What was learnt, as plain arrays and numbers."""

    @abstractmethod
    def _restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``_state`` gave, right after ``_begin``."""

    def _miss(self, clients: IntArray) -> None:  # noqa: B027 - most need not know
        """``clients`` were drawn and did not reply."""

    def _admit(self, masses: FloatArray, client_weights: FloatArray | None) -> IntArray:
        """Add newcomers to the distribution and return their ids; ``client_weights`` as they were given."""
        return self._distribution.add(self._roster.unit * masses)

    def _forget(self, leaving: IntArray) -> None:  # noqa: B027 - most need not know
        """``leaving`` (ascending) are about to leave: what they say of the others is dropped."""

    def _membership_changed(self, weight_factor: float) -> None:  # noqa: B027 - most need not know
        """Clients joined or left, and every other client's lambda was multiplied by ``weight_factor``."""

    # The round ---------------------------------------------------------------------------------------

    @property
    def num_clients(self) -> int:
        """M, the clients that can be drawn."""
        return self._roster.count

    @property
    def num_ids(self) -> int:
        """All client ids ever used, those of clients that left included: they are 0 to this less one."""
        return self._roster.ids

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

    @property
    def distribution(self) -> Distribution:
        """What was learnt, without the limits of the guard."""
        return self._distribution

    def client_weights(self, clients: ArrayLike | None = None) -> FloatArray:
        """lambda of all clients, by id, or of ``clients``; rescaled when clients join or leave."""
        if clients is None:
            return self._weights.masses(None) / self._weights.total
        return self._weights.shares(client_ids("clients", clients, self._roster.ids))

    def probabilities(self, clients: ArrayLike | None = None) -> FloatArray:
        """The probabilities of the next draw: all of them, by id, or those of ``clients``.

        All of them sum to one; ``cohort.probabilities`` of fixed size are the chances to be in the cohort.
        A client that has left has probability 0.
        """
        if clients is None:
            return self._effective_distribution().everybody()
        return self._effective_distribution().look_up(client_ids("clients", clients, self._roster.ids))

    def draw(self, available: ArrayLike | None = None) -> Cohort:
        """Draw the next cohort, from everybody or from the client ids in ``available``.

        With ``available`` the distribution is restricted to these and rescaled; if they are at most K, all
        of them take part, with weight one (Appendix D.2).
        """
        ids = None if available is None else self._available(available)
        cohort = Cohort.owning(self._round_index, self._cohort_size, self._weighed_draw(ids), 0, ids)
        ticket = cohort.checksum(self._name())
        object.__setattr__(cohort, "ticket", ticket)
        self._open[self._round_index] = ticket
        self._round_index += 1
        return cohort

    def observe(self, cohort: Cohort, norms: ArrayLike) -> None:
        """Learn from the update norms, aligned with ``cohort.clients``; nan means no reply.

        Feedback belongs to its cohort: it may come late and in any order, but only once. Nothing is learnt
        of clients that have left in the meantime.
        """
        values, complete = self._reported(cohort, norms)
        if self._noise is not None:
            values = self._noise.apply(cohort, values)
        heard = cohort
        if not complete:
            replied = ~np.isnan(values)
            here = ~replied & self._roster.present(cohort.clients) if self._roster.anybody_left else ~replied
            self._miss(cohort.clients[here])
            if self._guard is not None:
                self._guard.keep_silent(cohort, here)
            heard, values = cohort.replied(replied), values[replied]
        if self._roster.anybody_left:
            heard, values = self._of_those_here(heard, values)
        if len(heard.clients):
            anew, judged = False, [(heard, values)]
            if self._guard is not None:
                anew, judged = self._guard.judge(heard, values)
            if anew:
                self._learn_again(judged)
            else:
                self._learn(heard, self._weights.log_feedback(heard.clients, judged[0][1]))
        del self._open[cohort.round_index]

    def _reported(self, cohort: Cohort, norms: ArrayLike) -> tuple[FloatArray, bool]:
        """The norms of a cohort that awaits feedback, and whether everybody replied."""
        self._recognise(cohort)
        values = one_each("norms", norms, len(cohort.clients), "each client of the cohort", NORMS)
        complete = all_replied(values)
        if not complete:
            check_norms("norms", values)
        return values, complete

    def _learn_again(self, told: Replies) -> None:
        """Forget what was learnt, and learn this; norms that are nan are of clients that did not reply."""
        self._begin()
        for cohort, norms in told:
            if np.isnan(norms).any():
                self._miss(cohort.clients)
            else:
                self._learn(cohort, self._weights.log_feedback(cohort.clients, norms))

    def learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        """Learn from a cohort that another sampler drew; its weights say how it was drawn."""
        self._begun = True
        self._learn(cohort, log_feedback)

    def _effective_distribution(self) -> Distribution:
        """The distribution that cohorts are drawn from: what was learnt, limited by the guard."""
        if self._guard is None:
            return self._distribution
        return self._guard.limited(self._distribution, self._weights)

    def _of_those_here(self, cohort: Cohort, norms: FloatArray) -> tuple[Cohort, FloatArray]:
        """Without the clients that have left."""
        here = self._roster.present(cohort.clients)
        return cohort.only(here), norms[here]

    def _weighed_draw(self, available: IntArray | None) -> Weighed:
        """Draw from everybody or from those ``available``; clients, counts, probabilities and weights."""
        if available is not None:
            return self._draw_from(available)
        if self._design == "fixed_size" and self.num_clients <= self._cohort_size:
            return self._draw_from(self._everybody())
        generator = self._generator.of_round(self._round_index)
        effective = self._effective_distribution()
        if type(effective) is Capped:  # isinstance of a protocol takes microseconds
            effective.with_generator(generator)
        return draw_cohort(self._design, effective, self.num_clients, self._cohort_size, generator)

    def _draw_from(self, available: IntArray) -> Weighed:
        if len(available) <= self._cohort_size:
            ones = np.ones(len(available))
            return available, ones.astype(np.int64), ones, ones
        restricted = restrict(self._effective_distribution().look_up(available))
        chosen, counts, probabilities, weights = draw_dense(
            self._design, restricted, self._cohort_size, self._generator.of_round(self._round_index)
        )
        return available[chosen], counts, probabilities, weights

    def _everybody(self) -> IntArray:
        ids = np.arange(self._roster.ids)
        return ids[self._roster.present(ids)]

    def _available(self, values: ArrayLike) -> IntArray:
        ids = self._present_ids("available", values)
        if not len(ids):
            raise AvailabilityError("available names no client; name at least one, or skip the round")
        ids.setflags(write=False)
        return ids

    def _present_ids(self, name: str, values: ArrayLike) -> IntArray:
        """Ids of clients that are there, ascending, each once."""
        ids = np.sort(client_ids(name, values, self._roster.ids))
        repeated = ids[1:][ids[1:] == ids[:-1]]
        if len(repeated):
            raise AvailabilityError(f"{name} names client {repeated[0]} more than once")
        gone = ids[~self._roster.present(ids)]
        if len(gone):
            raise AvailabilityError(f"{name} names client {gone[0]}, which has left")
        return ids

    def _recognise(self, cohort: Cohort) -> None:
        """Raise a CohortError unless this sampler drew ``cohort`` and it awaits feedback."""
        if not isinstance(cohort, Cohort):
            raise CohortError(f"cohort must be a Cohort that this sampler drew, got {type(cohort).__name__}")
        if not isinstance(cohort.round_index, (int, np.integer)):
            raise CohortError(f"cohort has a round_index that is no whole number, {cohort.round_index!r}")
        ticket = self._open.get(cohort.round_index)
        if ticket is None and 0 <= cohort.round_index < self._round_index:
            raise CohortError(f"cohort of round {cohort.round_index} has had its feedback already")
        if ticket is None or cohort.ticket != ticket or cohort.checksum(self._name()) != ticket:
            raise CohortError(
                f"cohort of round {cohort.round_index} was not drawn by this sampler, or was changed since; "
                "pass it back as drawn, with nan as the norm of a client that did not reply"
            )
        if not all_known(cohort.clients, self._roster.ids):  # a state and a cohort from somebody else
            raise CohortError(f"cohort of round {cohort.round_index} has clients that do not exist")

    # Joining and leaving -----------------------------------------------------------------------------

    def add_clients(self, clients: int | ArrayLike, *, client_weights: ArrayLike | None = None) -> IntArray:
        """Add clients, and return their ids. ``clients`` is their number, or one prior mass for each.

        Prior masses and ``client_weights`` are in the units of those that the sampler was built with, which
        summed to one; a newcomer has the average of the initial clients, 1/M, unless given. Newcomers start
        like clients that were never drawn; for the others see ``remove_clients``.

        Each newcomer takes some 30 bytes of memory, 230 with the default sampler if sizes differ; initial
        clients that were never drawn take none.
        """
        average, room = 1.0 / self._initial_clients, MOST_CLIENTS - self._roster.ids
        if not isinstance(clients, (list, tuple)) and np.ndim(clients) == 0:
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
        before = self._weights.total
        self._weights.add(self._weights.unit * weights)
        ids = self._admit(masses, given)
        self._membership_changed(before / self._weights.total)
        return ids

    def remove_clients(self, clients: ArrayLike) -> None:
        """Remove clients for good; an id is not used again.

        The others keep their proportions exactly: the distribution is the old one, given that none of the
        removed clients is drawn. So nobody's probability falls, and no weight rises. MABS, VRB, K-Vib, Avare
        and empirical Bayes are formulas over all clients, with a least share for each; with the next
        feedback, the formula applies again to the clients that are left.
        What the guard leaves to outliers takes precedence over proportions.
        """
        leaving = self._present_ids("clients", clients)
        if not len(leaving):
            return
        self.check_leaving(leaving)
        before = self._weights.total
        if self._guard is not None:
            self._guard.forget(leaving)
        self._forget(leaving)
        self._weights.remove(leaving)
        self._distribution.remove(leaving)
        self._membership_changed(before / self._weights.total)

    def check_leaving(self, leaving: IntArray) -> None:
        """Raise a ConfigurationError if the sampler can't go on without ``leaving``."""
        left = self.num_clients - len(leaving)
        least = self._cohort_size if self._design in NEED_K_CLIENTS else 1
        if left < least:
            raise ConfigurationError(
                f"clients names {len(leaving)} of {self.num_clients}, but at least {least} must stay"
            )
        for what, roster in (("weight", self._weights), ("prior mass", self._roster)):
            if not roster.mass_beside(leaving):
                raise ConfigurationError(f"clients names all clients with a {what}; one at least must stay")

    # Hostile clients and privacy ---------------------------------------------------------------------

    @property
    def norm_bound(self) -> float:
        """The guard's bound for updates; inf without a guard, or before the first reply.

        A server that clips the updates at this bound limits what a client can do to the model. The sampler
        learns from norms that are clipped at a wider one. With ``privacy`` it is the bound of that: a guard
        sees noised norms only.
        """
        if self._noise is not None:
            return self._noise.privacy.norm_bound
        return np.inf if self._guard is None else self._guard.norm_bound

    def norm_bound_with(self, cohort: Cohort, norms: ArrayLike) -> float:
        """``norm_bound`` as it will be after ``observe(cohort, norms)``; nothing is learnt or remembered.

        So a server can clip the updates of a cohort, step, and call ``observe`` last.
        """
        values, _ = self._reported(cohort, norms)
        if self._guard is None or self._noise is not None:
            return self.norm_bound
        replied = ~np.isnan(values)
        heard, values = self._of_those_here(cohort.replied(replied), values[replied])
        return self._guard.norm_bound_with(heard, values) if len(heard.clients) else self.norm_bound

    def suspects(self) -> list[Suspect]:
        """The clients whose norms were clipped by the guard, the most frequent first."""
        return [] if self._guard is None else self._guard.suspects()

    @property
    def private(self) -> bool:
        """Whether norms are noised before anything is learnt from them."""
        return self._noise is not None

    def privacy_spent(self, delta: float = 1e-5) -> PrivacySpent:
        """What the replies so far have cost: (epsilon, delta)-differential privacy of the reported norms."""
        if self._noise is None:
            raise ConfigurationError("privacy_spent needs a sampler that was built with privacy")
        return self._noise.spent(delta)

    def _largest_log_feedback(self, method: str, norms: ArrayLike, clients: ArrayLike | None) -> float:
        """The largest log feedback of a pre-training pass, clipped by the guard; -inf where all are 0."""
        self._refuse_raw_norms(method)
        ids = self._roster.ids
        asked = np.arange(ids) if clients is None else client_ids("clients", clients, ids)
        values = norms_of("norms", norms, len(asked), "each client asked")
        asked, values = asked[~np.isnan(values)], values[~np.isnan(values)]
        if self._guard is not None:
            values = self._guard.clip_alone(values)
        return float(log_feedback_of(self._weights.shares(asked), values).max(initial=-np.inf))

    def _refuse_raw_norms(self, method: str) -> None:
        if self._noise is not None:
            raise ConfigurationError(
                f"{method} can't be used with privacy: its norms would be neither noised nor accounted for"
            )

    # Saving and continuing ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        hidden = {"seed"} if self.private else set()
        shown = ", ".join(
            f"{name}={_short(value)}"
            for name, value in self.settings.items()
            if value is not None and name not in hidden
        )
        rounds = "1 round" if self._round_index == 1 else f"{self._round_index} rounds"
        return f"<{type(self).__name__}({shown}): {rounds} drawn>"

    @property
    def is_new(self) -> bool:
        """Whether nothing has happened: no draw, nothing learnt or loaded, nobody joined or left."""
        same = self._roster.unchanged and self._weights.unchanged
        return same and not self._begun and self._round_index == 0

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
            **{f"config.{name}": value for name, value in self._config().items()},
            **weights,
            **self._roster.state(),
            **({} if self._guard is None else self._guard.state()),
            **({} if self._noise is None else self._noise.state()),
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
            raise StateError(f"state is of kind {kind!r}, this sampler is a {type(self).__name__}")
        if version != STATE_VERSION:
            raise StateError(f"state has version {version!r}, this library reads version {STATE_VERSION}")
        for name, value in self._config().items():
            saved = text(state, f"config.{name}")
            if saved != value:
                raise StateError(f"state was saved with {name} = {saved!r}, this sampler has {value!r}")
        seed, round_index = count(state, "seed"), count(state, "round_index")
        if seed > LARGEST_SEED or round_index > LARGEST_ROUND:
            raise StateError(f"state has seed {seed} and round_index {round_index}, and one is too large")
        rounds = array(state, "open_rounds", np.int64, (None,))
        check("open_rounds", rounds, (rounds >= 0) & (rounds < round_index), "of rounds that were drawn")
        tickets = array(state, "open_tickets", np.int64, (len(rounds),))
        weights = self._weights.restored(state, "weights.")
        roster = self._roster.restored(state, "")
        if not roster.same_clients(weights):
            raise StateError("state has left_clients and joined_masses that are not those of the weights")
        guard = None if self._guard is None else self._guard.restored(state, roster.ids)
        if guard is not None and not roster.present(guard.clients()).all():
            raise StateError("state has a guard that remembers clients that have left")
        noise = None if self._noise is None else self._noise.restored(state, roster.ids)
        before, learnt = self._roster, self._state()
        self._roster = roster
        try:
            self._begin()
            self._restore(state)
            if not self._roster.same_clients(weights):
                raise StateError("state has experts whose clients are not those of the weights")
            if not abs(self._distribution.summed() - 1.0) < SUMS_TO_ONE:
                raise StateError(f"state has probabilities that sum to {self._distribution.summed()}")
        except Exception as error:
            self._roster = before
            self._begin()
            self._restore(learnt)
            if isinstance(error, StateError):
                raise
            raise StateError(f"state can't be restored: {error!r}") from error
        self._weights, self._guard, self._noise = weights, guard, noise
        self._generator, self._identity = RoundGenerator(seed), None
        if "seed" in self.settings:
            self.settings["seed"] = seed
        self._round_index, self._begun = round_index, True
        self._open = dict(zip(rounds.tolist(), tickets.tolist(), strict=True))

    def _name(self) -> int:
        """A number that stands for this sampler on its tickets."""
        if self._identity is None:
            name = repr((type(self).__name__, self._generator.seed, self._config()))
            self._identity = zlib.crc32(name.encode())
        return self._identity

    def _config(self) -> dict[str, int | float | str]:
        """The settings as a state keeps them: of an array, enough to notice another one."""
        everything = {**self._common_settings, **self.settings}
        return {name: _plain(value) for name, value in everything.items() if name != "seed"}

    def _log_prior_ratios(self, clients: IntArray) -> FloatArray:
        """The logarithms of M times the prior of ``clients``, in the units of the start: 0 if uniform."""
        ratios = self._roster.masses(clients) * (self._initial_clients / self._roster.unit)
        return np.asarray(np.log(ratios))

    def _set_prior(self, prior: ArrayLike | None) -> None:
        """Start from ``prior`` instead of the uniform distribution, and explore by it."""
        given = None
        if prior is not None:
            given = distribution("prior", prior, self._initial_clients)
            require_support("prior", given, self._given_weights)
            self._roster = Roster(self._initial_clients, given)
        self.settings["prior"] = given


def _plain(value: Any) -> int | float | str:
    """A setting as a number or a string."""
    if value is None:
        return "none"
    if isinstance(value, np.ndarray):
        return f"{len(value)} values, crc32 {zlib.crc32(np.ascontiguousarray(value).data):08x}"
    if isinstance(value, dict):
        return repr(sorted(value.items()))
    if isinstance(value, (list, tuple)):
        return " ".join(type(member).__name__ for member in value)
    if isinstance(value, (Guard, NormPrivacy)):
        parts = ", ".join(f"{name}={part!r}" for name, part in asdict(value).items())
        return f"{type(value).__name__}({parts})"
    plain: int | float | str = value
    return plain


def _short(value: Any) -> str:
    """A setting in a few characters."""
    if isinstance(value, np.ndarray):
        return f"<{len(value)} values>"
    if isinstance(value, (list, tuple)) and all(isinstance(one, BaseSampler) for one in value):
        return f"[{', '.join(type(one).__name__ for one in value)}]"  # without their seeds
    return repr(value)
