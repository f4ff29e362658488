"""check_sampler can fail: for each promise a sampler that breaks it, and is told so.

Each breaks one thing by overriding the public methods of a sampler that keeps every promise
(tests/samplers/test_promises.py), the way an author of a sampler would get it wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sortition import Cohort, CohortError, FeedbackError, FixedSampler, OSMDSampler, Sampler, UniformSampler
from sortition.testing import check_sampler

M, K = 6, 2
SKEWED = np.array([0.3, 0.25, 0.2, 0.1, 0.1, 0.05])


class Sound(OSMDSampler):
    """Keeps every promise; the others are this one with one thing wrong."""

    def __init__(self, *, seed: int, cohort_size: int = K) -> None:
        super().__init__(num_clients=M, cohort_size=cohort_size, learning_rate=2e-3, seed=seed)
        self.settings = {"seed": seed, "cohort_size": cohort_size}


class Disguised(Sound):
    """Hands out cohorts that differ from those drawn, and takes feedback for them all the same."""

    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed)
        self.drawn: dict[int, Cohort] = {}

    def disguise(self, cohort: Cohort) -> Cohort:
        raise NotImplementedError

    def draw(self, available: Any = None) -> Cohort:
        cohort = super().draw(available)
        self.drawn[cohort.round_index] = cohort
        return self.disguise(cohort)

    def observe(self, cohort: Cohort, norms: Any) -> None:
        super().observe(self.drawn[cohort.round_index], norms)


class PlainAverage(Disguised):
    """Forgets the importance weights: every draw counts 1/K of all."""

    def disguise(self, cohort: Cohort) -> Cohort:
        return replace(cohort, weights=cohort.counts * M / K)


class RepeatsCountOnce(Disguised):
    """Weights 1 / (K p), however often a client was drawn."""

    def disguise(self, cohort: Cohort) -> Cohort:
        return replace(cohort, weights=cohort.weights / cohort.counts)


class SaysOneThingDrawsAnother(Disguised):
    """Weighs by the probabilities it reports, and draws uniformly."""

    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed)
        self.inner = UniformSampler(num_clients=M, cohort_size=K, seed=seed)

    def draw(self, available: Any = None) -> Cohort:
        cohort = self.inner.draw(available)
        p = SKEWED[cohort.clients]
        return replace(cohort, probabilities=p, weights=cohort.counts / (K * p))

    def observe(self, cohort: Cohort, norms: Any) -> None:
        """Learns nothing."""

    def probabilities(self, clients: Any = None) -> Any:
        return SKEWED.copy() if clients is None else SKEWED[clients]


class Duplicates(Disguised):
    """Lists a client once for each draw."""

    def disguise(self, cohort: Cohort) -> Cohort:
        draws = np.repeat(np.arange(len(cohort)), cohort.counts)
        return replace(
            cohort,
            clients=cohort.clients[draws],
            counts=np.ones(len(draws), dtype=int),
            probabilities=cohort.probabilities[draws],
            weights=cohort.weights[draws] / cohort.counts[draws],
        )

    def observe(self, cohort: Cohort, norms: Any) -> None:
        drawn = self.drawn[cohort.round_index]
        super().observe(cohort, [norms[list(cohort.clients).index(m)] for m in drawn.clients])


class NotADistribution(Sound):
    def probabilities(self, clients: Any = None) -> Any:
        return super().probabilities(clients) * 1.01


class NotFinite(Sound):
    """Squares norms that are too large for that."""

    spoilt = 0.0

    def observe(self, cohort: Cohort, norms: Any) -> None:
        super().observe(cohort, norms)
        if np.nanmax(norms, initial=0.0) > 1e200:
            self.spoilt = np.nan

    def probabilities(self, clients: Any = None) -> Any:
        return super().probabilities(clients) + self.spoilt


class RescalesLookUp(Sound):
    """Answers for some clients as if there were no others."""

    def probabilities(self, clients: Any = None) -> Any:
        p = super().probabilities(clients)
        return p / p.sum()


class Irreproducible(Sound):
    """Takes its randomness from a counter of its own."""

    made = 0

    def __init__(self, *, seed: int) -> None:
        Irreproducible.made += 1
        super().__init__(seed=seed + 1000 * Irreproducible.made)


class DeafToTheSeed(Sound):
    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=0)


class ForgetfulState(Sound):
    """Saves where it is, but not what it learnt."""

    def state_dict(self) -> dict[str, Any]:
        known = ("kind", "version", "seed", "round_index", "open_rounds", "open_tickets")
        fresh = Sound(seed=0).state_dict()
        return {name: value if name in known else fresh[name] for name, value in super().state_dict().items()}


class StateWithoutOpenCohorts(Sound):
    """Saves all but the cohorts whose feedback is still to come."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        nobody = np.zeros(0, dtype=np.int64)
        super().load_state_dict({**state, "open_rounds": nobody, "open_tickets": nobody})


class StateWithTheWrongRound(Sound):
    """Continues with the randomness of rounds that were drawn already."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({**state, "round_index": state["round_index"] + 7})


class StateOfObjects(Sound):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "myself": self}


class TakesFeedbackTwice(Sound):
    def observe(self, cohort: Cohort, norms: Any) -> None:
        try:
            super().observe(cohort, norms)
        except CohortError:
            if cohort.round_index in self._open:
                raise


class TakesAnybodysCohorts(Sound):
    """Goes by the number of the round alone."""

    def observe(self, cohort: Cohort, norms: Any) -> None:
        try:
            super().observe(cohort, norms)
        except CohortError:
            if cohort.round_index not in self._open:
                raise


class TakesNegativeNorms(Sound):
    def observe(self, cohort: Cohort, norms: Any) -> None:
        super().observe(cohort, np.abs(norms))


class TakesInfiniteNorms(Sound):
    def observe(self, cohort: Cohort, norms: Any) -> None:
        finite = np.where(np.isposinf(norms), 1e300, norms)
        super().observe(cohort, finite)


class TakesTooManyNorms(Sound):
    def observe(self, cohort: Cohort, norms: Any) -> None:
        super().observe(cohort, np.asarray(norms)[: len(cohort)])


class LeavesATrace(Sound):
    """Refuses, but only after it has closed the round."""

    def observe(self, cohort: Cohort, norms: Any) -> None:
        try:
            super().observe(cohort, norms)
        except FeedbackError:
            super().observe(cohort, np.full(len(cohort), np.nan))
            raise


class InventsReplies(Sound):
    """Takes no reply for a reply of ten."""

    def observe(self, cohort: Cohort, norms: Any) -> None:
        super().observe(cohort, np.where(np.isnan(norms), 10.0, norms))


class IgnoresAvailability(Sound):
    def draw(self, available: Any = None) -> Cohort:
        if available is None or len(available) <= K:
            return super().draw(available)
        return super().draw()


class HidesAvailability(Sound):
    """Does not write on the cohort what it was drawn from."""

    def draw(self, available: Any = None) -> Cohort:
        cohort = replace(super().draw(available), available=None)
        ticket = self._open[cohort.round_index] = cohort.checksum(self._name())
        self._latest = replace(cohort, ticket=ticket)
        return self._latest


class DrawsTheFew(Sound):
    """Draws K times from those available, even if these are at most K."""

    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed, cohort_size=1)

    cohort_size = property(lambda self: K)  # type: ignore[assignment]

    def draw(self, available: Any = None) -> Cohort:
        return super().draw(available)


class TakesUnknownClients(Sound):
    def draw(self, available: Any = None) -> Cohort:
        if available is not None and len(available):
            available = np.unique(np.clip(available, 0, M - 1))
        return super().draw(available)


class TakesAnyState(Sound):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        mine = self.state_dict()
        super().load_state_dict({**mine, **state, "kind": mine["kind"], "version": mine["version"]})


class LacksASetting(Sound):
    def __init__(self, *, seed: int, cohort_size: int = K) -> None:
        super().__init__(seed=seed, cohort_size=cohort_size)
        del self.settings["cohort_size"]


class RecordsAnotherSeed(Sound):
    def __init__(self, *, seed: int, cohort_size: int = K) -> None:
        super().__init__(seed=seed, cohort_size=cohort_size)
        self.settings["seed"] = seed + 1


BROKEN: list[tuple[type[Sampler], str]] = [
    (PlainAverage, "mean one"),
    (RepeatsCountOnce, "mean one"),
    (SaysOneThingDrawsAnother, "mean one"),
    (Duplicates, "distinct"),
    (NotADistribution, "sum to one"),
    (NotFinite, "finite"),
    (RescalesLookUp, r"probabilities\(clients\)"),
    (Irreproducible, "one seed"),
    (DeafToTheSeed, "another seed"),
    (ForgetfulState, "resumed"),
    (StateWithTheWrongRound, "resumed"),
    (StateOfObjects, "myself"),
    (TakesFeedbackTwice, "feedback twice"),
    (TakesAnybodysCohorts, "a cohort (of another sampler|that was changed)"),
    (TakesNegativeNorms, "negative norms"),
    (TakesInfiniteNorms, "infinite norms"),
    (TakesTooManyNorms, "wrong length"),
    (LeavesATrace, "changed the state"),
    (InventsReplies, "without replies"),
    (IgnoresAvailability, "only available clients"),
    (HidesAvailability, "carry what it was drawn from"),
    (DrawsTheFew, "at most K available"),
    (TakesUnknownClients, "unknown id in available"),
    (TakesAnyState, "state of another kind"),
    (LacksASetting, "settings.*cohort_size"),
    (RecordsAnotherSeed, "settings.*same sampler"),
]


@pytest.mark.parametrize(("broken", "verdict"), BROKEN, ids=[broken.__name__ for broken, _ in BROKEN])
def test_a_broken_sampler_is_found_out(broken: Any, verdict: str) -> None:
    with pytest.raises(AssertionError, match=verdict):
        check_sampler(lambda seed: broken(seed=seed))


def test_a_state_without_its_open_cohorts_is_found_out() -> None:
    """The resumed sampler refuses the late feedback."""
    with pytest.raises((AssertionError, CohortError), match="cohort of round"):
        check_sampler(lambda seed: StateWithoutOpenCohorts(seed=seed))


def test_a_floor_that_is_not_kept_is_found_out() -> None:
    with pytest.raises(AssertionError, match=r"probabilities.*0\.1\b"):
        check_sampler(lambda seed: Sound(seed=seed), floor=0.1)
    with pytest.raises(AssertionError, match=r"probabilities.*0\.06.*0\.05"):
        check_sampler(
            lambda seed: FixedSampler(num_clients=M, cohort_size=K, probabilities=SKEWED, seed=seed),
            floor=0.06,
        )


def test_a_sound_sampler_passes() -> None:
    """Otherwise the others might be found out for something else."""
    check_sampler(lambda seed: Sound(seed=seed), floor=0.4 / M)


def test_the_bias_of_a_single_client_is_found_out() -> None:
    """Half as much again for the client that is drawn most, all others as they should be."""

    class Favours(Disguised):
        def disguise(self, cohort: Cohort) -> Cohort:
            return replace(cohort, weights=cohort.weights * np.where(cohort.clients == M - 1, 1.5, 1.0))

    with pytest.raises(AssertionError, match=r"mean one.* 1\.[3-6]\d* .*client 5"):
        check_sampler(lambda seed: Favours(seed=seed))
