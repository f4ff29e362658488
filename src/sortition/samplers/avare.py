"""Avare: the sampler of El Hanchi and Stephens (2020)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.designs import Design
from sortition.core.guard_settings import Guard
from sortition.core.state import count
from sortition.core.types import FloatArray
from sortition.core.validation import number_between, positive_number
from sortition.engine.floored import FlooredProportional
from sortition.samplers.base import BaseSampler
from sortition.samplers.privacy import NormPrivacy


class AvareSampler(BaseSampler):
    r"""Takes each client's last feedback for its next, above a floor that shrinks.

    With :math:`h_m` the last :math:`\sqrt{a_m}` seen, 0 before,

    .. math:: p = \arg\min_{p \ge \epsilon_t} \sum_m h_m^2 / p_m, \qquad
              \epsilon_t = p_{\min} + \frac{1}{C^{1-\delta/3}\,(C + K(t-1))^{\delta/3}}

    with C = M, :math:`\delta = 1` and :math:`p_{\min} = 0`; uniform while all h are 0. The minimum is
    :math:`\max(\epsilon_t, c\,h_m)`, the same shape as the projection of Algorithm 2, which computes it.
    t counts the rounds that had feedback. C is ``floor_offset``, :math:`\delta` is ``floor_decay`` and
    :math:`p_{\min}` is ``smallest_floor``. With a ``prior`` :math:`\pi` the floor of client m is
    :math:`\epsilon_t M \pi_m`, and the start is the prior.

    Deviation: El Hanchi and Stephens draw one index a step, and have t - 1. Here K clients are drawn a round,
    and :math:`K(t-1)` counts draws.

    Deviation: a floor above 1/M is cut to 1/M, where draws are uniform. With the default C this happens for
    every ``smallest_floor`` above 0, in the first rounds: with :math:`p_{\min} = 0.1/M` until
    :math:`K(t-1)` is 0.37 M.

    El Hanchi and Stephens, *Adaptive Importance Sampling for Finite-Sum Optimization and Sampling with
    Decreasing Step-Sizes*, NeurIPS 2020.

    A round costs what moves: where one reply takes many clients to the floor, or off it, all of them are
    visited. With a million clients that is 15 to 40 ms instead of 0.2. Only a floor that moves by more than
    1%, about to where it was before its last jump, costs none (``docs/research/engine.md``).

    >>> sampler = AvareSampler(num_clients=4, cohort_size=1)
    >>> cohort = sampler.draw()
    >>> sampler.observe(cohort, [1.0])
    >>> sampler.floor() * 3 + sampler.probabilities(cohort.clients).item()
    1.0
    """

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        floor_offset: float | None = None,
        floor_decay: float = 1.0,
        smallest_floor: float = 0.0,
        prior: ArrayLike | None = None,
        client_weights: ArrayLike | None = None,
        design: Design = "with_replacement",
        seed: int = 0,
        guard: Guard | None = None,
        privacy: NormPrivacy | None = None,
    ) -> None:
        super().__init__(num_clients, cohort_size, client_weights, design, seed, guard, privacy)
        offset = self._initial_clients if floor_offset is None else floor_offset
        self._offset = positive_number("floor_offset", offset)
        self._decay = number_between("floor_decay", floor_decay, 0.0, 3.0)
        self._smallest_floor = number_between(
            "smallest_floor", smallest_floor, 0.0, 1.0 / self._initial_clients
        )
        self.settings |= {
            "floor_offset": self._offset,
            "floor_decay": self._decay,
            "smallest_floor": self._smallest_floor,
        }
        self._set_prior(prior)
        self._begin()

    def _begin(self) -> None:
        self._distribution = self._floored = FlooredProportional(self._roster)
        self._learnt_rounds = 0

    def floor(self) -> float:
        """epsilon_t of the next draw, unless clients have joined or left since the last feedback."""
        c, third = self._offset, self._decay / 3.0
        shrinking: float = 1.0 / (c ** (1.0 - third) * (c + self._cohort_size * self._learnt_rounds) ** third)
        return min(self._smallest_floor + shrinking, 1.0 / self.num_clients)

    def _membership_changed(self, weight_factor: float) -> None:
        self._floored.raise_all(math.log(weight_factor))  # heights go with lambda

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        self._learnt_rounds += 1
        exploration = self.floor() * self.num_clients
        self._floored.set_heights(cohort.clients, 0.5 * log_feedback, exploration=exploration)

    def _state(self) -> dict[str, Any]:
        return {**self._floored.state(), "learnt_rounds": self._learnt_rounds}

    def _restore(self, state: Mapping[str, Any]) -> None:
        rounds = count(state, "learnt_rounds")
        self._floored.restore(state)
        self._learnt_rounds = rounds
