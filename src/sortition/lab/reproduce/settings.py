"""What a run depends on, all of it: equal settings give equal runs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

from sortition.core.designs import Design

FORMAT = 3
"""Raised when the same settings come to mean another run: results of before are then not believed."""

Variant: TypeAlias = Literal["text", "authors"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
SYNTHETIC = ("heterogeneous", "one-coordinate")
IMAGES = ("mnist", "kmnist", "fashion-mnist")
REPLAYED = "replayed"
"""The authors' data and their random numbers, for all their samplers in turn."""
SAMPLERS_REPLAYED = 5


@dataclass(frozen=True)
class RunSettings:
    """One sampler on one federation, once."""

    variant: Variant
    problem: str
    """One of ``SYNTHETIC`` or ``IMAGES``, or ``REPLAYED``."""
    sampler: str
    num_rounds: int
    cohort_size: int
    step_size: float
    seed: int
    spread: float = 0.0
    """sigma, or nu; of synthetic federations."""
    algorithm: Literal["sgd", "scaffold"] = "sgd"
    exploration: float = 0.4
    design: Design = "with_replacement"
    evaluate_every: int = 1
    repeats: int = 1
    """One after another on one stream of random numbers, where the authors' are replayed."""
    images: str = ""
    """Digest of the images and labels, where the problem is made of these."""

    def plain(self) -> dict[str, Any]:
        """As a dictionary that JSON can hold."""
        return asdict(self)

    def name(self) -> str:
        """In words: enough to find the run by.

        >>> RunSettings("text", "heterogeneous", "uniform", 10, 5, 0.1, seed=0, spread=1.0).name()
        'uniform on heterogeneous 1 (text, sgd, step 0.1, seed 0)'
        """
        problem = self.problem if self.problem in IMAGES else f"{self.problem} {self.spread:g}"
        how = f"{self.variant}, {self.algorithm}, step {self.step_size:g}, seed {self.seed}"
        return f"{self.sampler} on {problem} ({how})"

    def key(self) -> str:
        """A name for the results of these settings.

        >>> one = RunSettings("text", "heterogeneous", "uniform", 10, 5, 0.1, seed=0, spread=1.0)
        >>> two = RunSettings("text", "heterogeneous", "uniform", 10, 5, 0.1, seed=1, spread=1.0)
        >>> one.key() == two.key()
        False
        """
        text = json.dumps({"format": FORMAT, **self.plain()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def rounds_in_all(self) -> int:
        """How many rounds, and ticks, the run takes."""
        return self.num_rounds * (SAMPLERS_REPLAYED * self.repeats if self.problem == REPLAYED else 1)

    def regret_is_measured(self) -> bool:
        """The norms of all clients are computed in every round of a synthetic federation."""
        return self.problem in SYNTHETIC
