"""Samplers that choose the clients that seem most useful: Power-of-Choice and Oort. Both are biased."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.designs import Weighed
from sortition.core.errors import ConfigurationError, FeedbackError
from sortition.core.state import array
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import number_between, one_each, positive_number, whole_number
from sortition.lab.rivals.subsets import SubsetSampler, draw_in_turn


class PowerOfChoiceSampler(SubsetSampler):
    r"""The K clients of largest loss among d candidates (Cho, Wang and Joshi, AISTATS 2022). **Biased.**

    .. math:: A \ni m \text{ drawn without replacement by } \lambda, \quad |A| = d, \qquad
              S = \text{the } K \text{ of } A \text{ with the largest } F_m(w), \qquad
              g = \frac1K \sum_{m \in S} g_m

    This is their strategy pow-d: a candidate evaluates the current model on all its data, so a round costs d
    evaluations beside K trainings. ``ask`` gives the losses before each draw. The weights
    :math:`1 / (K \lambda_m)` make the aggregate the plain mean. In the first round of the authors' code K
    clients are drawn uniformly; here that round is like the others.

    ``num_candidates``: d, from K to M; twice K if not given.

    >>> sampler = PowerOfChoiceSampler(num_clients=3, cohort_size=1, num_candidates=3)
    >>> sampler.ask(lambda clients: np.array([0.1, 0.9, 0.5])[clients])
    >>> sampler.draw().clients
    array([1])
    """

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        num_candidates: int | None = None,
        client_weights: ArrayLike | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(num_clients, cohort_size, client_weights, seed)
        if num_candidates is None:
            num_candidates = max(min(2 * self._cohort_size, self._initial_clients), self._cohort_size)
        self._num_candidates = whole_number("num_candidates", num_candidates, least=self._cohort_size)
        self.settings |= {"num_candidates": self._num_candidates}
        self._losses_of: Callable[[IntArray], FloatArray] | None = None
        self._begin()

    def ask(self, losses_of: Callable[[IntArray], FloatArray]) -> None:
        """Take the function that gives the mean loss of client ids at the model of the next round."""
        self._losses_of = losses_of

    def _choose(self, ids: IntArray, shares: FloatArray, generator: np.random.Generator) -> Weighed:
        if self._losses_of is None:
            raise FeedbackError(
                f"ask(losses_of) must come before each draw, but not for round {self._round_index} yet"
            )
        candidates = draw_in_turn(shares, self._num_candidates, generator)
        losses = one_each(
            "losses", self._losses_of(ids[candidates]), len(candidates), "each of the candidates"
        )
        self._losses_of = None
        largest = np.argsort(-losses, kind="stable")[: self._cohort_size]  # ties: as they were drawn
        chosen = np.sort(candidates[largest])
        p = shares[chosen]
        return ids[chosen], np.ones(len(chosen), dtype=np.int64), p, 1.0 / (len(chosen) * p)


class OortSampler(SubsetSampler):
    r"""Oort's participant selection (Lai et al., OSDI 2021, Section 4 and Algorithm 1). **Biased.**

    The utility of a client that trained is statistical utility, plus what grows while it waits, times a
    penalty for being slow. With R the round, L(i) the last one of client i, and T the preferred duration,

    .. math:: U(i) = n_i \sqrt{\tfrac1{n_i} \textstyle\sum_k \mathrm{loss}_k^2}, \qquad
              \mathrm{Util}(i) = \Big(U(i) + \sqrt{0.1 \log R / L(i)}\Big)
              \Big(\frac{T}{D(i)}\Big)^{\alpha [T < D(i)]}

    Out of K places, a share :math:`\varepsilon` goes to clients that never trained, by speed. The others go
    to clients with at least ``cutoff`` of the utility of the last of the best, in proportion to utility.
    The aggregate is the plain mean of the cohort, as in the authors' code. :math:`n_i` is taken from
    :math:`\lambda`, and the losses are those of all the client's data.

    ``durations`` are D, one for each client; None if all are alike, which leaves out the system utility.
    The pacer raises T by ``pacer_step`` when the utility of the last ``pacer_window`` rounds is less than
    that of those before. ``exploration`` is multiplied by ``exploration_decay`` in every round, down to
    ``least_exploration``, and ends when everybody was tried. The defaults are the paper's (Section 7.1).

    Deviation, as in the authors' code: U is clipped at its ``clip`` quantile and scaled by its range before
    the waiting time is added, which has no unit. T is a percentile of the durations, and ``pacer_step`` is
    in percent. Deviation from their code: it tries large clients first, the paper fast ones. Left out: the
    list of clients that took part too often, off by default in their code.

    >>> sampler = OortSampler(num_clients=6, cohort_size=2)
    >>> cohort = sampler.draw()
    >>> sampler.hear(cohort, np.ones(2))
    >>> sampler.observe(cohort, np.ones(2))
    """

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        client_weights: ArrayLike | None = None,
        durations: ArrayLike | None = None,
        exploration: float = 0.9,
        exploration_decay: float = 0.98,
        least_exploration: float = 0.2,
        cutoff: float = 0.95,
        clip: float = 0.95,
        penalty: float = 2.0,
        pacer_window: int = 20,
        pacer_step: float = 5.0,
        seed: int = 0,
    ) -> None:
        super().__init__(num_clients, cohort_size, client_weights, seed)
        self._durations: FloatArray | None = None
        if durations is not None:
            self._durations = one_each("durations", durations, self._initial_clients, "each client")
            if not np.all((self._durations > 0.0) & np.isfinite(self._durations)):
                raise ConfigurationError("durations must be finite and above 0 for every client")
        self._exploration = number_between("exploration", exploration, 0.0, 1.0)
        self._exploration_decay = number_between("exploration_decay", exploration_decay, 0.0, 1.0)
        self._least_exploration = number_between("least_exploration", least_exploration, 0.0, 1.0)
        self._cutoff = number_between("cutoff", cutoff, 0.0, 1.0)
        self._clip = number_between("clip", clip, 0.0, 1.0)
        self._penalty = number_between("penalty", penalty, 0.0, np.inf)
        self._pacer_window = whole_number("pacer_window", pacer_window, least=1)
        self._pacer_step = positive_number("pacer_step", pacer_step)
        self.settings |= {
            "durations": self._durations,
            "exploration": self._exploration,
            "exploration_decay": self._exploration_decay,
            "least_exploration": self._least_exploration,
            "cutoff": self._cutoff,
            "clip": self._clip,
            "penalty": self._penalty,
            "pacer_window": self._pacer_window,
            "pacer_step": self._pacer_step,
        }
        self._begin()

    _utilities: FloatArray
    _last_rounds: IntArray
    _history: FloatArray
    """Statistical utility of each round's cohort."""
    _percentile: float
    """T, as a percentile of the durations."""

    def hear(self, cohort: Cohort, losses: FloatArray) -> None:
        """Learn from the root mean square of each client's sample losses; nan means no reply."""
        heard = one_each("losses", losses, len(cohort), "each client of the cohort")
        clients, heard = cohort.clients[~np.isnan(heard)], heard[~np.isnan(heard)]
        utilities = self._weights.shares(clients) * heard
        self._utilities[clients] = utilities
        self._last_rounds[clients] = cohort.round_index + 1
        self._history = np.append(self._history, utilities.sum())
        window = self._pacer_window
        if len(self._history) % window == 0 and len(self._history) >= 2 * window:
            before, now = self._history[-2 * window : -window].sum(), self._history[-window:].sum()
            self._percentile = min(100.0, self._percentile + self._pacer_step * float(before > now))

    def scores(self, clients: IntArray) -> FloatArray:
        """Util of clients that have trained, in the round to come."""
        utilities = self._utilities[clients]
        clipped = np.minimum(utilities, np.quantile(utilities, self._clip, method="higher"))
        least = 0.999 * utilities.min()
        scale = max(float(utilities.max()) - least, np.finfo(float).tiny)
        waiting = np.sqrt(0.1 * np.log(self._round_index + 1.0) / self._last_rounds[clients])
        scores = (clipped - least) / scale + waiting
        if self._durations is not None:
            preferred = float(np.percentile(self._durations, self._percentile))
            slow = np.minimum(preferred / self._durations[clients], 1.0)
            scores = scores * slow**self._penalty
        return np.asarray(np.maximum(scores, np.finfo(float).tiny))

    def _choose(self, ids: IntArray, shares: FloatArray, generator: np.random.Generator) -> Weighed:
        size, trained = self._cohort_size, self._last_rounds[ids] > 0
        known, unknown = np.flatnonzero(trained), np.flatnonzero(~trained)
        decayed = self._exploration * self._exploration_decay**self._round_index
        exploration = max(decayed, self._least_exploration) if len(unknown) else 0.0
        exploited = min(size - int(size * exploration), len(known))
        chosen = np.zeros(0, dtype=np.int64)
        if exploited:
            scores = self.scores(ids[known])
            admitted = scores >= self._cutoff * np.partition(scores, -exploited)[-exploited]
            chosen = known[admitted][draw_in_turn(scores[admitted], exploited, generator)]
        speeds = np.ones(len(unknown)) if self._durations is None else 1.0 / self._durations[ids[unknown]]
        chosen = np.concatenate((chosen, unknown[draw_in_turn(speeds, size - len(chosen), generator)]))
        if len(chosen) < size:  # too few are left to explore
            rest = np.setdiff1d(known, chosen)
            more = generator.choice(rest, size - len(chosen), replace=False)
            chosen = np.concatenate((chosen, more))
        chosen = np.sort(chosen)
        p = shares[chosen]
        return ids[chosen], np.ones(size, dtype=np.int64), p, 1.0 / (size * p)

    def _begin(self) -> None:
        super()._begin()
        self._utilities = np.zeros(self._roster.ids)
        self._last_rounds = np.zeros(self._roster.ids, dtype=np.int64)
        self._history = np.zeros(0)
        self._percentile = min(self._pacer_step, 100.0)

    def _membership_changed(self, weight_factor: float) -> None:
        new = self._roster.ids - len(self._utilities)
        self._utilities = np.pad(self._utilities * weight_factor, (0, new))
        self._last_rounds = np.pad(self._last_rounds, (0, new))
        if self._durations is not None:  # a newcomer's is not known: the median
            median = float(np.median(self._durations))
            self._durations = np.pad(self._durations, (0, new), constant_values=median)

    def _state(self) -> dict[str, Any]:
        return {
            "utilities": self._utilities.copy(),
            "last_rounds": self._last_rounds.copy(),
            "history": self._history.copy(),
            "percentile": self._percentile,
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        ids = (self._roster.ids,)
        self._utilities = array(state, "utilities", np.float64, ids)
        self._last_rounds = array(state, "last_rounds", np.int64, ids)
        self._history = array(state, "history", np.float64, (None,))
        self._percentile = float(state["percentile"])
