r"""Norms that are clipped and noised before anything is learnt from them.

With the bound C, a norm is clipped at C and rounded to a grid of :math:`G = 2^{20}` steps in [0, C], so that
it is a whole number v from 0 to G. It then enters as

.. math:: \max\big(0, \lfloor v + \sigma G z \rfloor\big) \cdot C / G, \qquad z \sim N(0, 1)

Whatever a client reports can move v by at most G, the sensitivity. So :math:`v + \sigma G z` is a Gaussian
mechanism of noise multiplier :math:`\sigma`, and what enters is a function of its outcome: the privacy is the
same, without any account of floating point. z is drawn by whole numbers of 128 bits (Karney 2016, *Sampling
exactly from the normal distribution*) from a cryptographic generator. Its distribution is exact but for
:math:`2^{-110}` in total variation.

``docs/research/hostile-clients.md`` says what that protects, and what it does not.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sortition.core.accounting import gaussian_epsilon, gaussian_mu
from sortition.core.cohort import Cohort
from sortition.core.errors import ConfigurationError, StateError
from sortition.core.state import array, check, text
from sortition.core.types import FloatArray
from sortition.core.validation import named_keywords, number_between

MOST_REPLIES = 2**62
GRID = 2**20
"""G, the steps of the grid from 0 to the bound."""
BITS = 128
"""Of each uniform number that the noise is made from."""
KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class NormPrivacy:
    """Clip norms at ``norm_bound`` and add noise of ``noise_multiplier`` times that.

    The key of the noise comes from the operating system at the start of a run. ``fresh_noise=False`` makes it
    from the sampler's seed instead, so that a run can be repeated. Anybody who knows the seed can then
    subtract the noise.
    """

    norm_bound: float
    noise_multiplier: float
    fresh_noise: bool = True

    def __post_init__(self) -> None:
        for name, least, most in (("norm_bound", 1e-100, 1e100), ("noise_multiplier", 1e-6, 1e6)):
            object.__setattr__(self, name, number_between(name, getattr(self, name), least, most))
        if not isinstance(self.fresh_noise, bool):
            raise ConfigurationError(f"fresh_noise must be True or False, got {self.fresh_noise!r}")


NormPrivacy.__init__ = named_keywords(NormPrivacy.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class PrivacySpent:
    """What the replies so far have cost, in (epsilon, delta)-differential privacy of the reported norms.

    It covers the norms that one client reported, given everything else. It does not cover the client's data:
    its update moves the model, and so the norms that all others report later. For the data, the updates must
    be private as well.

    It is a guarantee if the largest number of replies was fixed beforehand. How often a client replies
    depends on what was heard before; for the number that came of it this is an account, not a proof.
    """

    delta: float
    epsilon_per_reply: float
    most_replies: int
    """The replies of the client that replied most."""
    epsilon: float
    """Of that client, over all its replies."""
    covers: str = "the norms that a client reported, given all else; not its data, which its updates show too"


class Uniforms:
    """A stream of uniform whole numbers of ``BITS`` bits: the bytes that SHAKE-256 makes of a seed."""

    def __init__(self, seed: bytes) -> None:
        self._stream = hashlib.shake_256(seed)
        self._data = self._stream.digest(256)
        self._place = 0

    def next(self) -> int:
        """The next number."""
        end = self._place + BITS // 8
        if end > len(self._data):
            self._data = self._stream.digest(2 * len(self._data))  # the same bytes, and as many more
        number = int.from_bytes(self._data[self._place : end], "big")
        self._place = end
        return number

    def happens(self, exponent: int) -> bool:
        """True with probability exp(-exponent / 2^BITS), for an exponent from 0 to 1 (von Neumann).

        The number of uniforms below exponent/1, exponent/2, ... in a row is even with that probability.
        """
        k = 1
        while self.next() * k < exponent:
            k += 1
        return k % 2 == 1

    def normal(self) -> int:
        """A standard normal number times 2^BITS, rounded towards 0 (Karney 2016, Algorithm N).

        Its absolute value is k + x with a whole k and x in [0, 1). The density of k + x is proportional to
        exp(-k/2) * exp(-k (k - 1) / 2) * exp(-k x) * exp(-x^2 / 2), and each factor is a coin.
        """
        half = 1 << (BITS - 1)
        while True:
            k = 0
            while self.happens(half):
                k += 1
            if not all(self.happens(half) for _ in range(k * (k - 1))):
                continue
            x = self.next()
            if all(self.happens(x) for _ in range(k)) and self.happens(x * x >> (BITS + 1)):
                size = (k << BITS) + x
                return size if self.next() & 1 else -size


class Noise:
    """Privacy at work: the key of the noise, and how often each client has replied."""

    def __init__(self, privacy: NormPrivacy, seed: int) -> None:
        self.privacy = privacy
        self._key = secrets.token_bytes(KEY_BYTES)
        if not privacy.fresh_noise:
            self._key = hashlib.blake2b(b"sortition noise %d" % seed, digest_size=KEY_BYTES).digest()
        self._replies: dict[int, int] = {}

    def apply(self, cohort: Cohort, norms: FloatArray) -> FloatArray:
        """The norms, clipped and noised, aligned with the cohort.

        The noise depends on the key, the round, the client and the norm, so that a resumed run equals the
        unbroken one. Two runs from one state that hear other norms in the same round add other noise.
        """
        bound = self.privacy.norm_bound
        numerator, denominator = (self.privacy.noise_multiplier * GRID).as_integer_ratio()
        steps = np.rint(np.minimum(norms, bound) / bound * GRID)
        noisy = np.full(len(norms), np.nan)  # for no reply
        for place in np.flatnonzero(~np.isnan(norms)).tolist():
            client, step = int(cohort.clients[place]), int(steps[place])
            source = Uniforms(self._key + b"%d %d %d" % (cohort.round_index, client, step))
            noise = numerator * source.normal() // (denominator << BITS)
            noisy[place] = max(0, step + noise) * (bound / GRID)
            self._replies[client] = self._replies.get(client, 0) + 1
        return noisy

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
            "privacy.key": self._key.hex(),
            "privacy.clients": np.array(list(self._replies), dtype=np.int64),
            "privacy.replies": np.array(list(self._replies.values()), dtype=np.int64),
        }

    def restored(self, state: Mapping[str, Any], ids: int) -> Noise:
        """The noise of ``state``, from a sampler with ``ids`` client ids."""
        noise = Noise(self.privacy, 0)
        key = text(state, "privacy.key")
        if not (isinstance(key, str) and re.fullmatch(f"[0-9a-f]{{{2 * KEY_BYTES}}}", key)):
            raise StateError(f"state must hold 'privacy.key', {2 * KEY_BYTES} hexadecimal digits")
        noise._key = bytes.fromhex(key)
        clients = array(state, "privacy.clients", np.int64, (None,))
        replies = array(state, "privacy.replies", np.int64, (len(clients),))
        check("privacy.clients", clients, (clients >= 0) & (clients < ids), f"from 0 to {ids - 1}")
        check(
            "privacy.replies", replies, (replies > 0) & (replies <= MOST_REPLIES), f"from 1 to {MOST_REPLIES}"
        )
        if len(np.unique(clients)) < len(clients):
            raise StateError("state has 'privacy.clients' with one of them twice")
        noise._replies = dict(zip(clients.tolist(), replies.tolist(), strict=True))
        return noise
