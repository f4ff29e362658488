r"""The noise of a step from a recorded run: only the norms of those who were drawn are known.

``cohort.weights`` have mean one for every client, so that for any f that was fixed before the draw

.. math:: \sum_{m \in S} \mathrm{weight}_m\,a_m f_m

is an unbiased estimate of :math:`\sum_m a_m f_m`. With :math:`f_m = 1/\pi_m - 1` it is S of uniform sampling,
of sampling by size, and of the run's own probabilities. The least S is that of :math:`\pi_m = \min(1,
\sqrt{a_m} / \theta)`; :math:`\theta` is chosen so that the estimated sum of these is K in a block of rounds.
That is consistent, but a little low or high where a block has few draws.

A default sampler that did not draw can still learn from what was drawn: its probabilities are fixed before
each round, so they are judged like the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.designs import INCLUSION_DESIGNS, inclusion_probabilities
from sortition.core.errors import LedgerError, SortitionError
from sortition.core.types import FloatArray, IntArray
from sortition.engine.fixed import MOST_DENSE
from sortition.lab.diagnosis.findings import ADAPTIVE, BEST, PROPORTIONAL, UNIFORM, StepNoise
from sortition.lab.diagnosis.known_norms import default_of
from sortition.lab.parallel import Tick
from sortition.ledger import RunRecord
from sortition.ledger.encoding import column_of
from sortition.ledger.record import Membership
from sortition.ledger.store import counted
from sortition.ledger.summary import suspicion_of

DRAWS_A_BLOCK = 200
MOST_VISITED = 40_000_000
"""Clients times rounds at most, to let the default sampler learn from a run of another."""
DEFAULT_SAMPLER = "EmpiricalBayesSampler"
FLOWER = "flower"
"""The attachment of a Flower run."""
PROBABLE = 1.0 + 1e-9
"""The largest probability of a row: one, up to rounding."""


@dataclass(frozen=True)
class DrawnRound:
    """What one round tells: of the clients that replied, and of all that could be drawn."""

    clients: IntArray
    weights: FloatArray
    """Mean one for every client."""
    feedback: FloatArray
    inclusion: FloatArray
    """With which the run drew them."""
    num_clients: int
    """Those that had joined and not left."""
    num_available: int
    by_size: FloatArray
    """Inclusion probabilities in proportion to the sizes."""
    size_shares: FloatArray
    """The shares in the data of those available."""
    sizes: FloatArray
    """In one unit for the whole run."""
    here: IntArray
    """All that could be drawn; nobody where that is too much to keep of so many rounds."""


def estimates(drawn: DrawnRound, cohort_size: int) -> dict[str, tuple[float, float]]:
    """Unbiased estimates of S by choice ("run" for the run's own), of fixed size and with replacement."""
    weighted = drawn.weights * drawn.feedback
    uniform = min(1.0, cohort_size / drawn.num_available)
    both = {
        UNIFORM: (weighted * (1.0 / uniform - 1.0), weighted * drawn.num_available / cohort_size),
        "run": (weighted * (1.0 / drawn.inclusion - 1.0), weighted / drawn.inclusion),
    }
    sized = drawn.feedback > 0.0
    shares, by_size = drawn.size_shares[sized], drawn.by_size[sized]
    with np.errstate(divide="ignore"):
        both[PROPORTIONAL] = (
            weighted[sized] * (1.0 / by_size - 1.0),
            weighted[sized] / (cohort_size * shares),
        )
    return {choice: (float(own.sum()), float(other.sum())) for choice, (own, other) in both.items()}


def measure_run(record: RunRecord, *, seed: int = 0, tick: Tick = lambda: None) -> StepNoise:
    """Estimate everything from the rounds that were answered."""
    try:
        with np.errstate(all="ignore"):  # norms may be as large as they like
            return _measure(record, seed, tick)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, SortitionError):
            raise
        raise LedgerError(
            f"{record.path} holds what no run writes, so it can't be diagnosed: {error!r}"
        ) from error


def _measure(record: RunRecord, seed: int, tick: Tick) -> StepNoise:
    if record.private:
        raise LedgerError(f"{record.path} is a private run: its norms are hidden, so it can't be diagnosed")
    cohort_size = record.cohort_size
    if cohort_size is None:
        raise LedgerError(f"{record.path} does not say its cohort size, so it can't be diagnosed")
    rounds, notes = [], []
    sizes, residuals = _flower_sizes(record.last_attachments().get(FLOWER, {})), record.has_memory
    lied = [suspect.client for suspect in suspicion_of(record).suspects]
    if lied:
        notes.append(
            f"The norms of {counted(len(lied), 'client')} were clipped by the guard. All figures are without "
            "them."
        )
    for drawn in drawn_rounds(record, cohort_size, sizes):
        feedback = np.where(np.isin(drawn.clients, lied), 0.0, drawn.feedback)
        rounds.append(replace(drawn, feedback=feedback))
        tick()
    if not rounds:
        raise LedgerError(f"{record.path} has no round with a reply yet; diagnose it when it has some")
    found = [estimates(drawn, cohort_size) for drawn in rounds]
    both = {choice: np.array([one[choice] for one in found]).T for choice in found[0]}
    block = min(len(rounds), max(5, math.ceil(DRAWS_A_BLOCK / cohort_size)))
    best, largest = _best(rounds, cohort_size, block)
    sampling = {UNIFORM: both[UNIFORM][0]}
    replacing = {UNIFORM: both[UNIFORM][1]}
    sized = any(np.ptp(drawn.size_shares) > 1e-12 for drawn in rounds)
    if sized:
        sampling[PROPORTIONAL], replacing[PROPORTIONAL] = both[PROPORTIONAL]
    else:
        notes.append(
            "All clients have the same weight in the ledger, so sampling by size is uniform sampling. If "
            "they have different amounts of data, the ledger does not say so."
        )
    unknown = 0 if sizes is None else int(np.isnan(sizes).sum())
    if unknown:
        notes.append(
            f"{unknown} clients have not told their sizes; they count as the mean of those that have."
        )
    if record.sampler == DEFAULT_SAMPLER:
        sampling[ADAPTIVE], replacing[ADAPTIVE] = both["run"]
    else:
        learnt = _learning(rounds, cohort_size, seed, tick)
        if learnt is None:
            notes.append("The run is not of the default sampler, and has too many clients to try that on it.")
        else:
            sampling[ADAPTIVE], replacing[ADAPTIVE] = learnt
            notes.append(
                "The run is not of the default sampler. 'adaptive' is one that learns from the clients that "
                "this run drew, each round judged before it is learnt from. Drawing its own, it would meet "
                "those that matter more often."
            )
    sampling[BEST], replacing[BEST] = best
    if not residuals:
        notes.append(
            "The norms are taken for those of updates. No memory was found in the run; if it had one that is "
            "not attached to it, they are of what had changed since, and the verdict says nothing."
        )
    notes.append("The variances are right on average; 'best possible' is a little off where rounds are few.")
    noise = StepNoise(
        num_clients=rounds[-1].num_clients,
        cohort_size=cohort_size,
        num_rounds=len(rounds),
        sampling=sampling,
        replacing=replacing,
        minibatch=None,
        signal=None,
        largest_signal=largest,
        block=block,
        estimated=True,
        heard=min(1.0, len(np.unique(np.concatenate([d.clients for d in rounds]))) / rounds[-1].num_clients),
        residuals=residuals,
        notes=tuple(notes),
    )
    squares = np.array([np.sum(drawn.weights * drawn.feedback) for drawn in rounds])
    least = {
        choice: _smallest(noise, choice, squares) for choice in sampling if choice not in (UNIFORM, BEST)
    }
    return replace(noise, smallest_cohorts={UNIFORM: least})


def drawn_rounds(
    record: RunRecord, cohort_size: int, sizes: FloatArray | None = None
) -> Iterator[DrawnRound]:
    """The answered rounds, each with the client weights of its time.

    ``sizes`` are the clients' amounts of data, nan if unknown; None if the client weights say them.
    """
    masses = _Masses(record, sizes)
    changes = iter([*record.memberships()])
    change = next(changes, None)
    inclusion_design = str(record.config.get("design")) in INCLUSION_DESIGNS
    visited = 0
    for entry in record.rounds():
        cohort = entry.cohort
        while change is not None and change.round_index <= cohort.round_index:
            masses.change(change)
            change = next(changes, None)
        if entry.norms is None or np.all(np.isnan(entry.norms)):
            continue
        heard = ~np.isnan(entry.norms)
        replied, norms = cohort.replied(heard), entry.norms[heard]
        shares, by_size, count = masses.among(cohort.available, replied.clients, cohort_size)
        inclusion = replied.probabilities
        if not (np.all((inclusion > 0.0) & (inclusion <= PROBABLE)) and np.all(np.isfinite(replied.weights))):
            raise LedgerError(f"the row of round {cohort.round_index} does not hold the chances of a cohort")
        if not inclusion_design:
            inclusion = np.minimum(1.0, cohort_size * inclusion)
        here = masses.here if cohort.available is None else cohort.available
        visited += masses.ids
        yield DrawnRound(
            clients=replied.clients,
            weights=replied.weights,
            feedback=(masses.weights(replied.clients) * norms) ** 2,
            inclusion=inclusion,
            num_clients=masses.count,
            num_available=count,
            by_size=by_size,
            size_shares=shares,
            sizes=masses.sizes()[replied.clients],
            here=here if visited <= MOST_VISITED else here[:0].copy(),
        )


class _Masses:
    """The client weights of a run as clients join and leave; in the unit that the sampler was built with.

    And the sizes of the clients, in the order of their ids, where they are known beside these.
    """

    def __init__(self, record: RunRecord, sizes: FloatArray | None = None) -> None:
        clients = record.initial_clients
        given = record.settings.get("client_weights")
        if clients is None or not record.rebuildable or "client_weights" not in record.settings:
            raise LedgerError(
                f"{record.path} does not say the client weights of its {record.sampler}, so it can't be "
                "diagnosed: only those of the library's own samplers are recorded. Diagnose a table of norms "
                "instead (NORMS.csv: client, size, norm), the problem (module:factory), or a recorded run of "
                "default_sampler or UniformSampler"
            )
        given = None if given is None else column_of(record.settings, "client_weights")
        if clients > MOST_DENSE:
            raise LedgerError(f"{record.path} has {clients} clients; up to {MOST_DENSE} can be diagnosed")
        if (given is not None and len(given) != clients) or (
            record.continues is not None and len(record.initially_left)
        ):
            raise LedgerError(
                f"{record.path} continues a run in which clients had joined or left; that can't be diagnosed"
            )
        self._average = 1.0 / clients
        self._all = np.full(clients, self._average) if given is None else np.asarray(given, dtype=float)
        self._kept: tuple[FloatArray, FloatArray] | None = None  # shares and inclusion of everybody
        self.here: IntArray = np.arange(clients)
        """The clients that have joined and not left."""
        self._known = None if sizes is None or np.all(np.isnan(sizes)) else sizes

    @property
    def ids(self) -> int:
        """How many clients have ever been here."""
        return len(self._all)

    def change(self, change: Membership) -> None:
        """Clients that joined or left."""
        self._kept = None
        joined = change.joined
        if joined is not None and len(joined):
            new = np.full(len(joined), self._average) if change.masses is None else change.masses
            if not np.array_equal(joined, len(self._all) + np.arange(len(new))):
                raise LedgerError(f"ids of clients that join must follow {len(self._all) - 1}, got {joined}")
            self._all = np.concatenate([self._all, new])
        if change.left is not None:
            self._all[change.left] = 0.0
        self.here = np.flatnonzero(self._all)

    @property
    def count(self) -> int:
        """How many clients are here."""
        return int(np.count_nonzero(self._all))

    def weights(self, clients: IntArray) -> FloatArray:
        """lambda, among all that are here."""
        return np.asarray(self._all[clients] / self._all.sum())

    def sizes(self) -> FloatArray:
        """What sampling by size goes by; 0 for clients that have left."""
        if self._known is None:
            return self._all
        sizes = np.full(len(self._all), np.nan)
        count = min(len(sizes), len(self._known))
        sizes[:count] = self._known[:count]
        sizes = np.where(np.isnan(sizes), np.nanmean(self._known), sizes)
        return np.where(self._all > 0.0, sizes, 0.0)

    def among(
        self, available: IntArray | None, clients: IntArray, cohort_size: int
    ) -> tuple[FloatArray, FloatArray, int]:
        """Of ``clients``: shares and inclusion by size among the available; and how many these are."""
        sizes = self.sizes()
        if available is not None:
            shares = sizes[available] / sizes[available].sum()
            places = np.searchsorted(available, clients)
            by_size = inclusion_probabilities(shares, cohort_size)
            return shares[places], by_size[places], len(available)
        if self._kept is None:
            everybody = sizes / sizes.sum()
            self._kept = everybody, inclusion_probabilities(everybody, cohort_size)
        shares, by_size = self._kept
        return shares[clients], by_size[clients], self.count


def _flower_sizes(state: Mapping[str, Any]) -> FloatArray | None:
    """The clients' amounts of data in the state of a Flower run, nan where unknown; None if it has none."""
    sizes = state.get("sizes")
    return None if sizes is None or not np.size(sizes) else np.asarray(sizes, dtype=float)


def _best(
    rounds: list[DrawnRound], cohort_size: int, block: int
) -> tuple[tuple[FloatArray, FloatArray], FloatArray]:
    r"""S of the best distribution, with replacement :math:`(\sum\sqrt a)^2 / K`, and the largest signal."""
    own, root_sums = [], []
    for part in np.array_split(np.arange(len(rounds)), max(1, len(rounds) // block)):
        some = [rounds[place] for place in part]
        roots = [np.sqrt(drawn.feedback) for drawn in some]
        theta = _threshold(roots, [drawn.weights for drawn in some], cohort_size)
        for drawn, root in zip(some, roots, strict=True):
            own.append(float(np.sum(drawn.weights * root * np.maximum(theta - root, 0.0))))
        mean = np.mean([np.sum(d.weights * root) for d, root in zip(some, roots, strict=True)])
        root_sums += [float(mean)] * len(some)
    squares = np.array(root_sums) ** 2
    return (np.array(own), squares / cohort_size), squares


def _threshold(roots: list[FloatArray], weights: list[FloatArray], cohort_size: int) -> float:
    """theta: the mean over the rounds of the sum of weight * min(1, root / theta) is K; 0 if it never is."""
    root, weight = np.concatenate(roots), np.concatenate(weights) / len(roots)
    positive = root > 0.0
    if not positive.any() or weight[positive].sum() <= cohort_size:
        return 0.0
    low, high = 0.0, float(np.sum(weight * root)) / cohort_size * 2.0
    for _ in range(100):
        middle = (low + high) / 2.0
        total = float(np.sum(weight * np.minimum(1.0, root / middle)))
        low, high = (middle, high) if total > cohort_size else (low, middle)
    return high


def _smallest(noise: StepNoise, choice: str, squares: FloatArray) -> int | None:
    r"""The least K' for which inclusion probabilities times K'/K have uniform sampling's variance.

    .. math:: \frac{K}{K'} (S + A) - A \le S_\mathrm{unif}, \qquad A = \sum_m a_m
    """
    own, uniform = noise.sampling[choice], noise.sampling[UNIFORM]
    above, below = float(np.sum(own + squares)), float(np.sum(uniform + squares))
    if below <= 0.0 or above > below:
        return None
    return max(1, math.ceil(noise.cohort_size * above / below))


def _learning(
    rounds: list[DrawnRound], cohort_size: int, seed: int, tick: Tick
) -> tuple[FloatArray, FloatArray] | None:
    """S of a default sampler that learns from the run's draws, by the probabilities it had before each."""
    if not all(len(drawn.here) for drawn in rounds):
        return None
    everybody = max(int(drawn.here.max()) for drawn in rounds) + 1
    sizes, seen = np.zeros(everybody), np.zeros(everybody, dtype=bool)
    for drawn in rounds:
        sizes[drawn.clients], seen[drawn.clients] = drawn.sizes, True
    sizes[~seen] = sizes[seen].mean()
    sampler: Any = default_of(sizes / sizes.sum(), cohort_size, seed)
    own, replacing = [], []
    for index, drawn in enumerate(rounds):
        p = sampler.probabilities()[drawn.here]
        places = np.searchsorted(drawn.here, drawn.clients)
        inclusion = inclusion_probabilities(p / p.sum(), cohort_size)[places]
        weighted = drawn.weights * drawn.feedback
        own.append(float(np.sum(weighted * (1.0 / inclusion - 1.0))))
        replacing.append(float(np.sum(weighted * p.sum() / (cohort_size * p[places]))))
        once = np.ones(len(drawn.clients), dtype=np.int64)
        cohort = Cohort(index, cohort_size, drawn.clients, once, drawn.inclusion, drawn.weights)
        sampler.learn(cohort, np.log(drawn.feedback))
        tick()
    return np.array(own), np.array(replacing)
