r"""Norms that are clipped and noised before anything is learnt from them.

A norm enters as :math:`\max(0, \min(\|g\|, C) + \sigma C\,z)`, z standard normal. A client's data can move
its norm by at most C, the sensitivity, so each reply is a Gaussian mechanism of noise multiplier
:math:`\sigma`.
``docs/hostile-clients.md`` says what that protects, and what it does not.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sortition.core.accounting import gaussian_epsilon, gaussian_mu
from sortition.core.cohort import Cohort
from sortition.core.designs import RoundGenerator
from sortition.core.errors import ConfigurationError, StateError
from sortition.core.state import array, scalar
from sortition.core.types import FloatArray
from sortition.core.validation import named_keywords, positive_number

NOISE_STREAM = 2**63
"""The upper half of Philox's key, 0 for the draws: no noise shares its randomness with a draw."""


@dataclass(frozen=True, slots=True)
class NormPrivacy:
    """Clip norms at ``norm_bound`` and add noise of ``noise_multiplier`` times that.

    The noise comes from the operating system's entropy at the start of a run. ``fresh_noise=False`` takes it
    from the sampler's seed instead, so that a run can be repeated. Anybody who knows the seed can then
    subtract the noise.
    """

    norm_bound: float
    noise_multiplier: float
    fresh_noise: bool = True

    def __post_init__(self) -> None:
        for name in ("norm_bound", "noise_multiplier"):
            object.__setattr__(self, name, positive_number(name, getattr(self, name)))
        if not isinstance(self.fresh_noise, bool):
            raise ConfigurationError(f"fresh_noise must be True or False, got {self.fresh_noise!r}")


NormPrivacy.__init__ = named_keywords(NormPrivacy.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class PrivacySpent:
    """What the replies so far have cost, in (epsilon, delta)-differential privacy of one client's data.

    It is a guarantee if the largest number of replies was fixed beforehand. How often a client replies
    depends on what was heard before; for the number that came of it this is an account, not a proof.
    """

    delta: float
    epsilon_per_reply: float
    most_replies: int
    """The replies of the client that replied most."""
    epsilon: float
    """Of that client, over all its replies."""


class Noise:
    """Privacy at work: the key of the noise, and how often each client has replied."""

    def __init__(self, privacy: NormPrivacy, seed: int) -> None:
        self.privacy = privacy
        self._key = secrets.randbits(64) if privacy.fresh_noise else seed
        self._replies: dict[int, int] = {}

    def apply(self, cohort: Cohort, norms: FloatArray) -> FloatArray:
        """The norms, clipped and noised, aligned with the cohort.

        The noise depends on (key, round) alone, so that a resumed run equals the unbroken one. Two runs from
        one state that hear other norms in the same round show the exact differences: see the docs.
        """
        generator = RoundGenerator(self._key + (NOISE_STREAM << 64)).of_round(cohort.round_index)
        noise = generator.standard_normal(len(norms))
        bound = self.privacy.norm_bound
        noisy = np.minimum(norms, bound) + self.privacy.noise_multiplier * bound * noise
        for client in cohort.clients[~np.isnan(norms)].tolist():
            self._replies[client] = self._replies.get(client, 0) + 1
        return np.asarray(np.maximum(noisy, 0.0))  # nan, for no reply, stays nan

    def spent(self, delta: float) -> PrivacySpent:
        """What the replies cost, as if their number had been fixed beforehand: see ``core.accounting``."""
        sigma, most = self.privacy.noise_multiplier, max(self._replies.values(), default=0)
        return PrivacySpent(
            delta=delta,
            epsilon_per_reply=gaussian_epsilon(gaussian_mu(sigma, 1), delta),
            most_replies=most,
            epsilon=gaussian_epsilon(gaussian_mu(sigma, most), delta),
        )

    def state(self) -> dict[str, Any]:
        """The key, and the replies of each client."""
        return {
            "privacy.key": self._key,
            "privacy.clients": np.array(list(self._replies), dtype=np.int64),
            "privacy.replies": np.array(list(self._replies.values()), dtype=np.int64),
        }

    def restored(self, state: Mapping[str, Any]) -> Noise:
        """The noise of ``state``."""
        noise = Noise(self.privacy, 0)
        key = scalar(state, "privacy.key")
        if not isinstance(key, int) or not 0 <= key < 2**64:
            raise StateError(f"state has 'privacy.key' = {key!r}, which is no whole number in [0, 2^64)")
        noise._key = key
        clients = array(state, "privacy.clients", np.int64, (None,))
        replies = array(state, "privacy.replies", np.int64, (len(clients),))
        noise._replies = dict(zip(clients.tolist(), replies.tolist(), strict=True))
        return noise
