"""What the OSMD samplers are made of: experts above a floor, drawn from as a mixture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.errors import ConfigurationError
from sortition.core.experts import log_expert_losses, mixture, osmd_step, reweigh_experts
from sortition.core.rates import initial_expert_weights
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import distribution, fraction
from sortition.samplers.base import Config, array, fingerprint


class Experts:
    r"""E distributions and their weights: the state of Algorithm 5, and of Algorithm 1 with one expert.

    ``prior`` generalises the paper's uniform start: all experts start at the prior, and the floor is
    ``exploration`` times the prior, where the paper has :math:`\alpha / M`.
    """

    def __init__(
        self,
        *,
        num_clients: int,
        client_weights: FloatArray | None,
        prior: ArrayLike | None,
        exploration: float,
        experts: int,
    ) -> None:
        self._exploration = fraction("exploration", exploration)
        self._given_prior = None if prior is None else distribution("prior", prior, num_clients)
        if self._given_prior is None:
            self._prior = np.full(num_clients, 1.0 / num_clients)
        else:
            require_support("prior", self._given_prior, client_weights)
            self._prior = self._given_prior / self._given_prior.sum()
        self._probabilities: FloatArray
        self._log_weights: FloatArray
        self._start(experts, self._prior)

    @property
    def weights(self) -> FloatArray:
        """theta_e, the experts' weights in the mixture."""
        return np.exp(self._log_weights)

    def mixture(self, clients: IntArray | None) -> FloatArray:
        """The mixed probabilities of ``clients``, or of all (Algorithm 5, line 5)."""
        experts = self._probabilities if clients is None else self._probabilities[:, clients]
        return mixture(self._log_weights, experts)

    def advance(
        self, log_rates: FloatArray, log_meta_rate: float, cohort: Cohort, log_feedback: FloatArray
    ) -> None:
        """One round of every expert and of their weights (Algorithm 5, lines 7 to 11)."""
        floor = self._exploration * self._prior
        losses = log_expert_losses(self._probabilities, cohort, log_feedback)
        self._probabilities = np.array(
            [
                osmd_step(expert, floor, log_rate, cohort, log_feedback)
                for expert, log_rate in zip(self._probabilities, log_rates, strict=True)
            ]
        )
        self._log_weights = reweigh_experts(self._log_weights, log_meta_rate, losses)

    def restart(self, experts: int, *, at_mixture: bool) -> None:
        """Begin anew with ``experts`` of them, all at the mixture or at the prior (Algorithm 6, line 6)."""
        self._start(experts, self.mixture(None) if at_mixture else self._prior)

    def config(self) -> Config:
        """The settings that a state belongs to."""
        return {"exploration": self._exploration, "prior": fingerprint(self._given_prior)}

    def state(self) -> dict[str, Any]:
        """What was learnt."""
        return {
            "expert_probabilities": self._probabilities.copy(),
            "log_expert_weights": self._log_weights.copy(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` gave; on a StateError nothing has changed."""
        probabilities = array(state, "expert_probabilities", np.float64, (None, len(self._prior)))
        log_weights = array(state, "log_expert_weights", np.float64, (len(probabilities),))
        self._probabilities, self._log_weights = probabilities, log_weights

    def _start(self, experts: int, start: FloatArray) -> None:
        self._probabilities = np.tile(start, (experts, 1))
        self._log_weights = np.log(initial_expert_weights(experts))


def require_support(name: str, masses: FloatArray, client_weights: FloatArray | None) -> None:
    """A client that counts must be possible to draw."""
    counts = np.ones(len(masses)) if client_weights is None else client_weights
    missing = np.flatnonzero((masses == 0.0) & (counts > 0.0))
    if len(missing):
        raise ConfigurationError(
            f"{name} must be above 0 for every client with a weight, or the aggregate is biased, "
            f"got 0 for client {missing[0]}"
        )
