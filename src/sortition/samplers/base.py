"""What every sampler does alike in a round: draw, hand out a ticket, recognise it, hear who replied."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from typing import Any, Required, Self, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.designs import DESIGNS, Design, RoundGenerator, Weighed, draw_dense, restrict
from sortition.core.errors import AvailabilityError, CohortError, ConfigurationError
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import (
    MOST_CLIENTS,
    check_norms,
    client_ids,
    distribution,
    one_each,
    one_of,
    whole_number,
)
from sortition.engine.drawing import draw_cohort
from sortition.engine.feedback import all_replied, log_feedback
from sortition.engine.roster import Roster
from sortition.samplers.defences import Defences
from sortition.samplers.guard import Guard, Suspect
from sortition.samplers.privacy import NormPrivacy, PrivacySpent
from sortition.samplers.state import LARGEST_SEED, Saved


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
        self._founders = whole_number("num_clients", num_clients, least=1, most=MOST_CLIENTS)
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
            self._given_weights = distribution("client_weights", client_weights, self._founders)
        self._weights = Roster(self._founders, self._given_weights)
        self._roster = Roster(self._founders, None)  # subclasses may have another
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
                self._design, self._shown(generator), self.num_clients, self._cohort_size, generator
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
            return self._shown().everybody()
        return self._shown().look_up(client_ids("clients", clients, self._roster.ids))

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
        shown, reporters = self._shown(), heard.clients
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
