"""The paper's meta-algorithm over any samplers: hedge between several, and follow the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.designs import Design
from sortition.core.errors import ConfigurationError, StateError
from sortition.core.experts import log_expert_losses, normalise_log_weights, reweigh_experts
from sortition.core.guard_settings import Guard
from sortition.core.rates import initial_expert_weights
from sortition.core.state import array, check, number
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import positive_number
from sortition.engine.drawing import Distribution
from sortition.engine.mixture import LARGEST_LOG_WEIGHT, VANISHING
from sortition.samplers.base import BaseSampler
from sortition.samplers.privacy import NormPrivacy

CAUTION = 0.2
"""The scale-free meta rate: what a loss of twice the mixture's costs an expert in a round, in logs."""
GUARD = Guard()
"""The guard of a portfolio unless told otherwise: one lie may ruin some of its experts."""
MEMORY = 0.9
"""How much of the running loss is kept from one round to the next."""


class SamplerMixture(Distribution):
    """The distributions of several samplers, mixed."""

    def __init__(self, experts: Sequence[BaseSampler]) -> None:
        self.experts = list(experts)
        self.log_weights = np.log(initial_expert_weights(len(self.experts)))

    def of_each(self, clients: IntArray) -> FloatArray:
        """The probabilities of ``clients`` by each expert, one row an expert."""
        return np.array([expert.distribution.look_up(clients) for expert in self.experts])

    def draw(self, uniforms: FloatArray) -> tuple[IntArray, FloatArray]:
        """Choose an expert by its weight for each draw, and draw from it."""
        weights = np.exp(self.log_weights)
        starts = np.concatenate(([0.0], np.cumsum(weights)[:-1]))
        chosen = np.searchsorted(starts, uniforms[:, 0], side="right") - 1
        within = np.clip((uniforms[:, 0] - starts[chosen]) / weights[chosen], 0.0, np.nextafter(1.0, 0.0))
        draws = np.empty(len(uniforms), dtype=np.int64)
        for e, expert in enumerate(self.experts):
            mine = chosen == e
            if mine.any():
                rows = np.stack((within[mine], uniforms[mine, 1]), axis=1)
                draws[mine] = expert.distribution.draw(rows)[0]
        return draws, self.look_up(draws)

    def look_up(self, clients: IntArray) -> FloatArray:
        """The mixed probabilities of ``clients``."""
        return np.asarray(np.exp(self.log_weights) @ self.of_each(clients))

    def everybody(self) -> FloatArray:
        """The mixed probabilities of all ids."""
        each = np.array([expert.distribution.everybody() for expert in self.experts])
        return np.asarray(np.exp(self.log_weights) @ each)

    def heavy(self, threshold: float) -> IntArray:
        """A superset of the clients with at least ``threshold``: no mixture exceeds all its experts."""
        found = [expert.distribution.heavy(threshold) for expert in self.experts]
        return np.unique(np.concatenate(found))

    def block_probability(self) -> float:
        """The largest probability of an unseen client of a roster's block."""
        return max(expert.distribution.block_probability() for expert in self.experts)

    def summed(self) -> float:
        """What the experts' weights sum to; each expert checks its own state."""
        return float(np.exp(self.log_weights).sum())

    def add(self, masses: FloatArray) -> IntArray:
        """Not here: the portfolio adds newcomers to its experts, with their weights."""
        raise NotImplementedError

    def remove(self, clients: IntArray) -> None:
        """Remove ``clients`` from all experts; the others keep their proportions."""
        left = [expert.distribution.mass_without(clients) for expert in self.experts]
        for expert in self.experts:
            expert.remove_clients(clients)
        self.reweigh(np.log(np.maximum(left, VANISHING)))

    def reweigh(self, log_factors: FloatArray) -> None:
        """Multiply the experts' weights by exp(log_factors): the rule of Bayes when clients join or leave."""
        self.log_weights = normalise_log_weights(self.log_weights + log_factors)


class PortfolioSampler(BaseSampler):
    r"""Exponential weights over any samplers, by the estimated variance loss (Algorithm 5, generalised).

    .. math:: \hat p^t = \sum_e \theta^t_e \hat p^t_e, \qquad
              \theta^{t+1}_e \propto \theta^t_e \exp\{-\gamma\,\hat l_t(\hat p^t_e; \hat p^t)\}

    Every expert learns from every cohort, weighted by how the mixture drew it. With OSMD samplers at the
    rates of Equation 22 and the paper's :math:`\gamma` as ``meta_rate`` this is the algorithm of
    ``AdaptiveOSMDSampler``, equal to rounding (``test_adaptive_osmd_is_the_special_case``). That one is
    implemented apart, with all its experts in one structure, so that a round costs :math:`O(E K \log n)`.

    The portfolio's ``guard`` and ``privacy`` serve all its experts: a ``guard`` of an expert is not used, and
    ``privacy`` of an expert is refused.

    Deviation: without a ``meta_rate``, :math:`\gamma` is 0.2 over the running mean of the mixture's own
    estimated loss, so that neither a horizon nor a bound is needed and the norms' scale does not matter.

    >>> from sortition import AvareSampler, ProportionalSampler
    >>> setting = {"num_clients": 10, "cohort_size": 2}
    >>> sampler = PortfolioSampler(experts=[ProportionalSampler(**setting), AvareSampler(**setting)])
    >>> sampler.expert_weights
    array([0.75, 0.25])
    """

    def __init__(
        self,
        *,
        experts: Sequence[BaseSampler],
        meta_rate: float | None = None,
        design: Design = "with_replacement",
        seed: int = 0,
        guard: Guard | None = GUARD,
        privacy: NormPrivacy | None = None,
    ) -> None:
        _check_experts(experts)
        first = experts[0]
        super().__init__(
            first.num_clients, first.cohort_size, first._given_weights, design, seed, guard, privacy
        )
        self._meta_rate = None if meta_rate is None else positive_number("meta_rate", meta_rate)
        self._expert_samplers = list(experts)
        self.settings |= {"experts": self._expert_samplers, "meta_rate": self._meta_rate}
        self._mix()

    def _begin(self) -> None:
        """All experts begin, with the clients that are there, and have their first weights."""
        for expert in self._expert_samplers:
            expert._begin()
        self._mix()

    def _mix(self) -> None:
        self._roster = self._expert_samplers[0]._roster
        self._distribution = self._mixture = SamplerMixture(self._expert_samplers)
        self._log_loss = math.nan

    @property
    def expert_weights(self) -> FloatArray:
        """theta_e, in the order of the experts."""
        return np.exp(self._mixture.log_weights)

    def _admit(self, masses: FloatArray, client_weights: FloatArray | None) -> IntArray:
        experts = self._expert_samplers
        for expert in experts:
            ids = expert.add_clients(masses, client_weights=client_weights)
        self._mixture.reweigh(-np.log([expert.distribution.mass_without(ids) for expert in experts]))
        return ids

    def check_leaving(self, leaving: IntArray) -> None:
        """Raise a ConfigurationError if one of the experts can't go on without ``leaving``."""
        super().check_leaving(leaving)
        for expert in self._expert_samplers:
            expert.check_leaving(leaving)

    def _miss(self, clients: IntArray) -> None:
        for expert in self._expert_samplers:
            expert._miss(clients)

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        each = self._mixture.of_each(cohort.clients)
        everybody = np.arange(len(cohort))
        aligned = Cohort(
            0, cohort.cohort_size, everybody, cohort.counts, cohort.probabilities, cohort.weights
        )
        losses = log_expert_losses(each, aligned, log_feedback)
        for expert in self._expert_samplers:
            expert.learn(cohort, log_feedback)
        if losses.min() == -math.inf:
            return
        self._mixture.log_weights = reweigh_experts(
            self._mixture.log_weights, self._log_meta_rate(losses), losses
        )

    def _log_meta_rate(self, log_losses: FloatArray) -> float:
        if self._meta_rate is not None:
            return math.log(self._meta_rate)
        mixed = float(np.logaddexp.reduce(self._mixture.log_weights + log_losses))
        if math.isnan(self._log_loss):
            self._log_loss = mixed
        kept, new = math.log(MEMORY) + self._log_loss, math.log(1.0 - MEMORY) + mixed
        self._log_loss = float(np.logaddexp(kept, new))
        return math.log(CAUTION) - max(self._log_loss, mixed)

    def _state(self) -> dict[str, Any]:
        state = {"log_expert_weights": self._mixture.log_weights.copy(), "log_loss": self._log_loss}
        for i, expert in enumerate(self._expert_samplers):
            state.update({f"expert{i}.{name}": value for name, value in expert.state_dict().items()})
        return state

    def _restore(self, state: Mapping[str, Any]) -> None:
        log_weights = array(state, "log_expert_weights", np.float64, (len(self._expert_samplers),))
        right = np.isfinite(log_weights) & (log_weights <= LARGEST_LOG_WEIGHT)
        check("log_expert_weights", log_weights, right, "finite and at most 0")
        log_loss = number(state, "log_loss", nan=True)
        for i, expert in enumerate(self._expert_samplers):
            prefix = f"expert{i}."
            own = {name[len(prefix) :]: v for name, v in state.items() if name.startswith(prefix)}
            expert.load_state_dict(own)
        self._mix()
        if not all(self._roster.same_clients(expert._roster) for expert in self._expert_samplers):
            raise StateError("state has experts whose clients are not the same")
        self._mixture.log_weights, self._log_loss = log_weights, log_loss


def _check_experts(experts: Sequence[BaseSampler]) -> None:
    """Raise a ConfigurationError unless ``experts`` are new samplers that can learn from the same cohorts."""
    several: Any = experts if isinstance(experts, (list, tuple)) else ()
    if not several or not all(isinstance(expert, BaseSampler) for expert in several):
        raise ConfigurationError(
            f"experts must be a list of samplers of this library, one or more, got {experts!r}"
        )
    wanted = _common_setting(experts[0])
    for i, expert in enumerate(experts):
        which = f"expert {i}, {type(expert).__name__}"
        if _common_setting(expert) != wanted:
            raise ConfigurationError(
                f"experts must agree in num_clients, cohort_size and client_weights, "
                f"got {_common_setting(expert)} for {which}, and {wanted} for the first"
            )
        if any(expert is other for other in experts[:i]):
            raise ConfigurationError(f"experts must be different samplers, but {which}, is there twice")
        if expert.private:
            raise ConfigurationError(
                f"experts must have no privacy of their own, since the portfolio gives them the norms: "
                f"give privacy to the portfolio, not to {which}"
            )
        if not expert.is_new:
            raise ConfigurationError(
                f"experts must be new, but {which}, has drawn, learnt or loaded something, "
                f"or clients have joined or left it"
            )


def _common_setting(sampler: BaseSampler) -> tuple[int, int, str]:
    """What samplers that learn from the same cohorts must agree in."""
    weights = sampler._given_weights
    words = "uniform client_weights" if weights is None else f"client_weights {weights.tolist()}"
    return sampler._initial_clients, sampler.cohort_size, words
