"""Every promise that a sampler makes, as a check that can fail."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import SortitionError
from sortition.core.protocols import Sampler
from sortition.core.validation import named_keywords
from sortition.samplers.base import BaseSampler

Make: TypeAlias = Callable[[int], Sampler]
BeforeDraw: TypeAlias = Callable[[Any], None]

ROUNDS = 12
DRAWS = 2000
STANDARD_ERRORS = 6.0


@named_keywords
def check_sampler(make: Make, *, floor: float = 0.0, before_draw: BeforeDraw | None = None) -> None:
    """Check every promise of the sampler that ``make(seed)`` builds; an AssertionError says which one broke.

    ``floor`` is the smallest probability that a client may have. ``before_draw(sampler)`` is called before
    each draw, for samplers that must be told something first. Use a small federation, of some dozens of
    clients at most: the check of the weights needs a few thousand draws.

    >>> from sortition import AvareSampler
    >>> check_sampler(lambda seed: AvareSampler(num_clients=6, cohort_size=2, seed=seed))
    """
    prepare = before_draw or (lambda sampler: None)
    for promise in (
        _is_a_distribution,
        _has_mean_one_weights,
        _is_reproducible,
        _is_resumable,
        _tolerates_silence,
        _survives_extreme_feedback,
        _takes_feedback_by_cohort,
        _restricts_to_the_available,
        _rejects_bad_input,
        _can_be_built_again,
    ):
        _check(promise, make, floor, prepare)
    if before_draw is None:
        _check(_lets_clients_join_and_leave, make, floor, prepare)


def _check(promise: Callable[[Make, float, BeforeDraw], None], *arguments: Any) -> None:
    """Run one check; an error of the sampler is a broken promise, too."""
    try:
        promise(*arguments)
    except AssertionError:
        raise
    except Exception as error:
        doing = promise.__name__.strip("_").replace("_", " ")
        raise AssertionError(f"the promise {doing!r} broke: {type(error).__name__}: {error}") from error


def feedback_of(cohort: Cohort, num_clients: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Norms for a check: they differ between clients and change from round to round."""
    heterogeneity = np.exp(3.0 * (cohort.clients + 1.0) / num_clients)
    return np.asarray(heterogeneity * (1.0 + 0.5 * np.sin(cohort.round_index + cohort.clients)))


def _train(sampler: Sampler, rounds: int, prepare: BeforeDraw) -> list[Cohort]:
    cohorts = []
    for _ in range(rounds):
        prepare(sampler)
        cohort = sampler.draw()
        sampler.observe(cohort, feedback_of(cohort, sampler.num_clients))
        cohorts.append(cohort)
    return cohorts


def _same_cohort(one: Cohort, other: Cohort) -> bool:
    return one.round_index == other.round_index and all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("clients", "counts", "probabilities", "weights")
    )


def _is_a_distribution(make: Make, floor: float, prepare: BeforeDraw) -> None:
    sampler = make(0)
    for _ in range(ROUNDS):
        _assert_distribution(sampler, floor)
        _train(sampler, 1, prepare)
    some = np.arange(sampler.num_clients)[::2]
    assert np.array_equal(sampler.probabilities(some), sampler.probabilities()[some]), (
        "probabilities(clients) must be those entries of probabilities()"
    )


def _assert_distribution(sampler: Sampler, floor: float) -> None:
    p = sampler.probabilities()
    assert p.shape == (sampler.num_clients,), f"one probability a client, got shape {p.shape}"
    _assert_sums_to_one(sampler)
    assert p.min() >= floor * (1.0 - 1e-9), f"probabilities must be at least {floor}, got {p.min()!r}"


def _has_mean_one_weights(make: Make, floor: float, prepare: BeforeDraw) -> None:
    """Draws without feedback are independent draws from one distribution, so a mean has a known error."""
    sampler = make(1)
    _train(sampler, ROUNDS, prepare)
    p = sampler.probabilities()
    totals, squares = np.zeros(len(p)), np.zeros(len(p))
    for _ in range(DRAWS):
        prepare(sampler)
        cohort = sampler.draw()
        assert len(np.unique(cohort.clients)) == len(cohort), "the clients of a cohort must be distinct"
        assert np.all(cohort.counts >= 1) and np.all(cohort.weights > 0.0), (
            "a drawn client has a count and a weight above 0"
        )
        totals[cohort.clients] += cohort.weights
        squares[cohort.clients] += cohort.weights**2
    possible = p > 0.0
    # a weight's variance is at most 1 / (K p) in the designs of this library, and what was seen elsewhere
    spread = np.maximum(squares[possible] / DRAWS, 1.0 / (sampler.cohort_size * p[possible]))
    errors = np.abs(totals[possible] / DRAWS - 1.0) / np.sqrt(spread / DRAWS)
    assert errors.max(initial=0.0) < STANDARD_ERRORS, (
        f"weights must have mean one, got {totals[possible][errors.argmax()] / DRAWS} "
        f"for client {np.flatnonzero(possible)[errors.argmax()]}, {errors.max():.1f} standard errors away"
    )


def _is_reproducible(make: Make, floor: float, prepare: BeforeDraw) -> None:
    first, second = make(7), make(7)
    for one, other in zip(_train(first, ROUNDS, prepare), _train(second, ROUNDS, prepare), strict=True):
        assert _same_cohort(one, other), f"two runs with one seed differ in round {one.round_index}"
    others = _train(make(8), ROUNDS, prepare)
    assert not all(map(_same_cohort, _train(make(7), ROUNDS, prepare), others)), (
        "another seed must give another run"
    )


def _is_resumable(make: Make, floor: float, prepare: BeforeDraw) -> None:
    whole, broken = make(3), make(3)
    _train(whole, ROUNDS, prepare)
    _train(broken, ROUNDS, prepare)
    prepare(whole)
    prepare(broken)
    late_whole, late_broken = whole.draw(), broken.draw()  # a cohort that is open when the state is saved
    state = broken.state_dict()
    _assert_plain(state)
    resumed = make(99)
    resumed.load_state_dict(state)
    _train(broken, 2, prepare)  # the state must not be tied to the sampler that gave it
    for sampler, late in ((whole, late_whole), (resumed, late_broken)):
        sampler.observe(late, feedback_of(late, sampler.num_clients))
    assert np.array_equal(whole.probabilities(), resumed.probabilities()), (
        "a resumed run must equal the unbroken one to the bit"
    )
    for one, other in zip(_train(whole, ROUNDS, prepare), _train(resumed, ROUNDS, prepare), strict=True):
        assert _same_cohort(one, other), (
            f"a resumed run differs from the unbroken one in round {one.round_index}"
        )
    assert np.array_equal(whole.probabilities(), resumed.probabilities()), (
        "a resumed run must equal the unbroken one to the bit"
    )


def _assert_plain(state: dict[str, Any]) -> None:
    for name, value in state.items():
        plain = isinstance(value, (bool, int, float, str, np.integer, np.floating)) or (
            isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
        )
        assert plain, f"a state holds plain arrays, numbers and strings, got {type(value)} for {name!r}"


def _tolerates_silence(make: Make, floor: float, prepare: BeforeDraw) -> None:
    sampler = make(4)
    _train(sampler, ROUNDS, prepare)
    prepare(sampler)
    cohort = sampler.draw()
    before = sampler.probabilities()
    sampler.observe(cohort, np.full(len(cohort), np.nan))
    if not hasattr(sampler, "reply_rate"):  # those that have it learn who replies
        assert np.array_equal(before, sampler.probabilities()), "a round without replies must change nothing"
    _assert_distribution(sampler, floor)
    for _ in range(ROUNDS):
        prepare(sampler)
        cohort = sampler.draw()
        norms = feedback_of(cohort, sampler.num_clients)
        norms[::2] = np.nan
        sampler.observe(cohort, norms)
        _assert_distribution(sampler, floor)


def _survives_extreme_feedback(make: Make, floor: float, prepare: BeforeDraw) -> None:
    sampler = make(5)
    for _ in range(3 * ROUNDS):
        prepare(sampler)
        cohort = sampler.draw()
        extremes = np.roll([0.0, 1e-300, 1e300], cohort.round_index)
        sampler.observe(cohort, np.resize(extremes, len(cohort)))
        _assert_distribution(sampler, floor)


def _takes_feedback_by_cohort(make: Make, floor: float, prepare: BeforeDraw) -> None:
    sampler, another = make(6), make(16)
    prepare(sampler)
    first = sampler.draw()
    prepare(sampler)
    second = sampler.draw()
    prepare(sampler)
    third = sampler.draw()  # stays open: a round that awaits feedback, but not that of another sampler
    for _ in range(3):
        prepare(another)
        foreign = another.draw()
    assert foreign.round_index == third.round_index
    norms = {cohort.round_index: feedback_of(cohort, sampler.num_clients) for cohort in (first, second)}
    sampler.observe(second, norms[second.round_index])
    sampler.observe(first, norms[first.round_index])
    before = sampler.probabilities()
    for cohort, what in ((first, "feedback twice"), (foreign, "a cohort of another sampler")):
        _refuses(lambda cohort=cohort: sampler.observe(cohort, np.ones(len(cohort))), what)  # type: ignore[misc]
    assert np.array_equal(before, sampler.probabilities()), "refused feedback must change nothing"


def _restricts_to_the_available(make: Make, floor: float, prepare: BeforeDraw) -> None:
    sampler = make(9)
    _train(sampler, ROUNDS, prepare)
    few = np.arange(sampler.num_clients)[: min(sampler.cohort_size, sampler.num_clients)][::-1]
    prepare(sampler)
    everyone = sampler.draw(available=few)
    assert np.array_equal(everyone.clients, np.sort(few)), "at most K available: all of them take part"
    assert np.array_equal(everyone.weights, np.ones(len(few))), "at most K available: with weight one"
    half = np.arange(0, sampler.num_clients, 2)
    for _ in range(ROUNDS):
        prepare(sampler)
        cohort = sampler.draw(available=half)
        assert np.isin(cohort.clients, half).all(), "only available clients may be drawn"
        assert cohort.available is not None, "a cohort must carry what it was drawn from"
        assert np.array_equal(np.sort(cohort.available), half), "a cohort must carry what it was drawn from"
        sampler.observe(cohort, feedback_of(cohort, sampler.num_clients))
        _assert_distribution(sampler, floor)


def _rejects_bad_input(make: Make, floor: float, prepare: BeforeDraw) -> None:
    sampler = make(10)
    _train(sampler, ROUNDS, prepare)
    prepare(sampler)
    cohort = sampler.draw()
    while not len(cohort):  # an independent draw may be empty
        sampler.observe(cohort, [])
        prepare(sampler)
        cohort = sampler.draw()
    prepare(sampler)
    before = sampler.state_dict()
    size, clients = len(cohort), sampler.num_clients
    changed = replace(cohort, weights=cohort.weights * 2.0)
    state = sampler.state_dict()
    for call, what in (
        (lambda: sampler.observe(cohort, np.full(size, -1.0)), "negative norms"),
        (lambda: sampler.observe(cohort, np.full(size, np.inf)), "infinite norms"),
        (lambda: sampler.observe(cohort, np.ones(size + 1)), "norms of the wrong length"),
        (lambda: sampler.observe(changed, np.ones(size)), "a cohort that was changed"),
        (lambda: sampler.draw(available=[]), "nobody available"),
        (lambda: sampler.draw(available=[clients]), "an unknown id in available"),
        (lambda: sampler.draw(available=[-1]), "a negative id in available"),
        (lambda: sampler.draw(available=[0, 0]), "an id twice in available"),
        (lambda: sampler.probabilities([clients]), "the probability of an unknown client"),
        (lambda: sampler.load_state_dict({**state, "kind": "Other"}), "a state of another kind"),
        (lambda: sampler.load_state_dict({**state, "version": -1}), "a state of another version"),
        (lambda: sampler.load_state_dict({}), "an empty state"),
    ):
        _refuses(call, what)
        after = sampler.state_dict()
        assert before.keys() == after.keys() and all(
            np.array_equal(before[name], after[name], equal_nan=np.asarray(before[name]).dtype.kind == "f")
            for name in before
        ), f"refusing {what} has changed the state"
    sampler.observe(cohort, np.ones(size))  # it still awaits its feedback


def _can_be_built_again(make: Make, floor: float, prepare: BeforeDraw) -> None:
    """For samplers on the library's base: settings are the constructor's keywords, and build it again."""
    sampler: Any = make(11)
    if not isinstance(sampler, BaseSampler):
        return
    settings = sampler.settings
    if any(isinstance(value, list) for value in settings.values()):
        return  # a sampler of other samplers would share them with the one that is built again
    kind = type(sampler)
    parameters = inspect.signature(kind).parameters
    assert not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters.values()), (
        f"{kind.__name__} must write its keywords out, since **keywords can't be recorded"
    )
    keywords = set(parameters)
    assert settings.keys() == keywords, (
        f"settings must hold every keyword of {kind.__name__} and no other: write "
        f"`self.settings |= {{...}}` in its constructor; they differ in {sorted(settings.keys() ^ keywords)}"
    )
    again = kind(**settings)
    for one, other in zip(_train(sampler, ROUNDS, prepare), _train(again, ROUNDS, prepare), strict=True):
        assert _same_cohort(one, other), "type(sampler)(**sampler.settings) must build the same sampler"


def _lets_clients_join_and_leave(make: Make, floor: float, prepare: BeforeDraw) -> None:
    """For samplers with ``add_clients`` and ``remove_clients``; they must have K + 2 clients."""
    sampler: Any = make(12)
    if not (hasattr(sampler, "add_clients") and hasattr(sampler, "remove_clients")):
        return
    _train(sampler, ROUNDS, prepare)
    clients = sampler.num_clients
    p = sampler.probabilities()
    if clients > sampler.cohort_size + 1 and np.count_nonzero(p) > sampler.cohort_size + 1:
        leaving = int(np.argmin(p))
        sampler.remove_clients([leaving])
        assert sampler.num_clients == clients - 1, "num_clients must not count a client that has left"
        _assert_sums_to_one(sampler)
        assert sampler.probabilities([leaving])[0] == 0.0, "a client that has left has probability 0"
    newcomers = sampler.add_clients(2)
    assert np.array_equal(newcomers, np.arange(clients, clients + 2)), "newcomers get the next ids"
    for _ in range(ROUNDS):
        cohort = sampler.draw()
        sampler.observe(cohort, feedback_of(cohort, clients + 2))
        _assert_sums_to_one(sampler)
    restored: Any = make(13)
    restored.load_state_dict(sampler.state_dict())
    assert np.array_equal(restored.probabilities(), sampler.probabilities()), (
        "a state must hold the clients that joined and left"
    )


def _assert_sums_to_one(sampler: Sampler) -> None:
    p = sampler.probabilities()
    assert np.all(np.isfinite(p)), f"probabilities must be finite, got {p}"
    assert abs(p.sum() - 1.0) < 1e-9, f"probabilities must sum to one, got {p.sum()!r}"


def _refuses(call: Callable[[], object], what: str) -> None:
    try:
        call()
    except SortitionError as error:
        assert str(error), f"{what}: the error must say something"
        return
    except Exception as error:
        raise AssertionError(f"{what} must raise a SortitionError, got {error!r}") from error
    raise AssertionError(f"{what} must raise a SortitionError")
