"""What stands between a client's report and what is learnt from it: noise, clip, and ceilings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import ConfigurationError
from sortition.core.types import FloatArray, IntArray
from sortition.engine.capped import Capped
from sortition.engine.drawing import Distribution
from sortition.samplers.guard import Guard, Suspect
from sortition.samplers.privacy import Noise, NormPrivacy, PrivacySpent
from sortition.samplers.trial import Replies
from sortition.samplers.watch import Watch, WeightsOf


class Defences:
    """The guard and the privacy of one sampler; either may be absent."""

    def __init__(self, guard: Guard | None, privacy: NormPrivacy | None, seed: int) -> None:
        if not (guard is None or isinstance(guard, Guard)):
            raise ConfigurationError(f"guard must be a Guard or None, got {guard!r}")
        if not (privacy is None or isinstance(privacy, NormPrivacy)):
            raise ConfigurationError(f"privacy must be a NormPrivacy or None, got {privacy!r}")
        self._watch = None if guard is None else Watch(guard)
        self._noise = None if privacy is None else Noise(privacy, seed)

    @property
    def guarded(self) -> bool:
        """Whether there is a guard."""
        return self._watch is not None

    @property
    def private(self) -> bool:
        """Whether norms are noised."""
        return self._noise is not None

    def noised(self, cohort: Cohort, norms: FloatArray) -> FloatArray:
        """The norms that may be used at all; nan for no reply."""
        return norms if self._noise is None else self._noise.apply(cohort, norms)

    def refuse_raw_norms(self, method: str) -> None:
        """Raise a ConfigurationError where norms must be noised, which those given to ``method`` are not."""
        if self._noise is not None:
            raise ConfigurationError(
                f"{method} must not be used with privacy: its norms would be neither noised nor accounted for"
            )

    def clipped(self, heard: Cohort, norms: FloatArray) -> FloatArray:
        """The norms as they may count."""
        return norms if self._watch is None else self._watch.clip(heard, norms)

    def judged_trial(self) -> Replies:
        """When the first replies can be judged, and lies were among them: all of them as they may count."""
        return [] if self._watch is None else self._watch.judge_trial()

    def moderated(self, norms: FloatArray) -> FloatArray:
        """Norms of a pre-training pass as they may count, by themselves alone."""
        return norms if self._watch is None else self._watch.moderate(norms)

    def over(
        self,
        distribution: Distribution,
        num_clients: int,
        weights_of: WeightsOf,
        generator: np.random.Generator | None = None,
    ) -> Distribution:
        """What to draw from instead of ``distribution``; ``weights_of`` tells client weights."""
        if self._watch is None:
            return distribution
        shown = self._watch.over(distribution, num_clients, weights_of)
        if generator is not None and isinstance(shown, Capped):
            return shown.with_generator(generator)
        return shown

    def hold(
        self,
        clients: IntArray,
        before: FloatArray,
        distribution: Distribution,
        num_clients: int,
        weights_of: WeightsOf,
        draws: int,
    ) -> None:
        """Limit the rise of ``clients``, who were learnt from after so many ``draws``."""
        if self._watch is not None:
            self._watch.hold(clients, before, distribution, num_clients, weights_of, draws)

    def rescale(self, factor: float) -> None:
        """Clients came or left, and everybody's probability was multiplied by ``factor``."""
        if self._watch is not None:
            self._watch.rescale(factor)

    def forget(self, clients: IntArray) -> None:
        """``clients`` have left."""
        if self._watch is not None:
            self._watch.forget(clients)

    @property
    def norm_bound(self) -> float:
        """What a norm may be by those heard of late."""
        return np.inf if self._watch is None else self._watch.norm_bound

    @property
    def on_trial(self) -> bool:
        """Whether the guard has too few replies to judge anybody by."""
        return self._watch is not None and self._watch.on_trial

    def suspects(self) -> list[Suspect]:
        """The clients that hit the clip, the most frequent first."""
        return [] if self._watch is None else self._watch.suspects()

    def privacy_spent(self, delta: float) -> PrivacySpent:
        """What the replies so far have cost."""
        if self._noise is None:
            raise ConfigurationError("privacy must be given to the sampler to be accounted for, got none")
        return self._noise.spent(delta)

    def config(self) -> dict[str, str]:
        """The settings, in words."""
        return {
            "guard": "none" if self._watch is None else repr(self._watch.guard),
            "privacy": "none" if self._noise is None else repr(self._noise.privacy),
        }

    def state(self) -> dict[str, Any]:
        """All that they remember."""
        watch = {} if self._watch is None else self._watch.state()
        return {**watch, **({} if self._noise is None else self._noise.state())}

    def restored(self, state: Mapping[str, Any], ids: int) -> Defences:
        """These defences with the memory of ``state``, of a sampler with so many ids."""
        defences = Defences(None, None, 0)
        defences._watch = None if self._watch is None else self._watch.restored(state, ids)
        defences._noise = None if self._noise is None else self._noise.restored(state)
        return defences
