"""What a run says of its sampler without changing it, and what it says of one that lacks a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from numpy.typing import ArrayLike

import sortition
from sortition.core.errors import ConfigurationError
from sortition.core.types import FloatArray
from sortition.samplers.guard import Suspect
from sortition.samplers.privacy import PrivacySpent


class SamplerView(ABC):
    """The read-only side of a sampler, passed on: nothing here is recorded."""

    @property
    @abstractmethod
    def sampler(self) -> Any:
        """The sampler itself."""

    @property
    def num_clients(self) -> int:
        """M, the clients that can be drawn."""
        return int(self.sampler.num_clients)

    @property
    def cohort_size(self) -> int:
        """K, the draws of a round."""
        return int(self.sampler.cohort_size)

    def probabilities(self, clients: ArrayLike | None = None) -> FloatArray:
        """The probabilities of the next new draw: all of them, or those of ``clients``."""
        found: FloatArray = self.sampler.probabilities(clients)
        return found

    def state_dict(self) -> dict[str, Any]:
        """The sampler's state."""
        state: dict[str, Any] = self.sampler.state_dict()
        return state

    def client_weights(self, clients: ArrayLike | None = None) -> FloatArray:
        """The sampler's lambda of all clients, or of ``clients``."""
        weights: FloatArray = method_of(self.sampler, "client_weights")(clients)
        return weights

    @property
    def norm_bound(self) -> float:
        """What a norm counts for at most in the next feedback; inf where nothing is known or clipped."""
        return float(self.sampler.norm_bound)

    def suspects(self) -> list[Suspect]:
        """The clients whose norms hit the clip of the sampler's guard, the most frequent first."""
        found: list[Suspect] = method_of(self.sampler, "suspects")()
        return found

    def privacy_spent(self, delta: float = 1e-5) -> PrivacySpent:
        """What the replies so far have cost in (epsilon, delta)-differential privacy."""
        spent: PrivacySpent = method_of(self.sampler, "privacy_spent")(delta)
        return spent


def method_of(sampler: Any, name: str) -> Any:
    """That method of the sampler; where it has none, an error that names the samplers that do."""
    method = getattr(sampler, name, None)
    if callable(method):
        return method
    kinds = [kind for kind in sortition.__all__ if kind.endswith("Sampler")]
    able = [kind for kind in kinds if callable(getattr(getattr(sortition, kind), name, None))]
    raise ConfigurationError(
        f"{name} must be called on a run of a sampler that has it ({', '.join(able)}), "
        f"got one of {type(sampler).__name__}"
    )
