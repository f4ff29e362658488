"""The samplers that a comparison knows by name, each configured as its own paper says.

None is tuned to the federation. All samplers that need a bound on the feedback get the same one: the largest
feedback at the initial model, which the paper obtains from a pre-training phase (Section 6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    ConfigurationError,
    DoublingOSMDSampler,
    EmpiricalBayesSampler,
    KVibSampler,
    MABSSampler,
    OptimalClientSampler,
    OptimalSampler,
    ProportionalSampler,
    Sampler,
    SortitionError,
    UniformSampler,
    VRBSampler,
)
from sortition.core.designs import Design
from sortition.core.types import FloatArray
from sortition.lab.imported import imported, in_one_line

BASELINE = "uniform"
"""What every other sampler is compared with."""
EXPLORATION = 0.4


@dataclass(frozen=True)
class Trial:
    """What a sampler may know before the first round."""

    client_weights: FloatArray
    cohort_size: int
    num_rounds: int
    feedback_bound: float
    design: Design
    seed: int

    @classmethod
    def at_start(
        cls,
        client_weights: FloatArray,
        initial_norms: FloatArray,
        *,
        cohort_size: int,
        num_rounds: int,
        design: Design,
        seed: int,
    ) -> Trial:
        """A trial whose bound is the largest feedback of ``initial_norms``, those of the initial model."""
        bound = float(np.max((client_weights * initial_norms) ** 2))
        return cls(client_weights, cohort_size, num_rounds, bound, design, seed)

    def common(self) -> dict[str, Any]:
        """The arguments that every sampler takes."""
        return {
            "num_clients": len(self.client_weights),
            "cohort_size": self.cohort_size,
            "client_weights": self.client_weights,
            "design": self.design,
            "seed": self.seed,
        }

    def bounded(self) -> dict[str, Any]:
        """The arguments of samplers that explore and know a bound on the feedback."""
        return {**self.common(), "exploration": EXPLORATION, "feedback_bound": self.feedback_bound}


Contestant: TypeAlias = Callable[[Trial], Sampler]


def uniform(trial: Trial) -> Sampler:
    """p = 1/M: what federated learning does by default."""
    return UniformSampler(**trial.common())


def proportional(trial: Trial) -> Sampler:
    """p = lambda: in proportion to the data, whose sizes must be known."""
    return ProportionalSampler(**trial.common())


def adaptive_osmd(trial: Trial) -> Sampler:
    """Adaptive-OSMD with the rates of the paper's text (Algorithm 5)."""
    return AdaptiveOSMDSampler(**trial.bounded(), num_rounds=trial.num_rounds)


def adaptive_osmd_x100(trial: Trial) -> Sampler:
    """Adaptive-OSMD with 100 times the text's rates.

    Deviation: in the authors' code the feedback is 100 times what its bound says, which amounts to this;
    it is the variant that gives the published curves.
    """
    return AdaptiveOSMDSampler(**trial.bounded(), num_rounds=trial.num_rounds, rate_scale=100.0)


def doubling_osmd(trial: Trial) -> Sampler:
    """Adaptive-OSMD for a run of unknown length, with the rates of the paper's text (Algorithm 6)."""
    return DoublingOSMDSampler(**trial.bounded())


def mabs(trial: Trial) -> Sampler:
    """Salehi, Celis and Thiran 2017."""
    return MABSSampler(**trial.bounded(), num_rounds=trial.num_rounds)


def vrb(trial: Trial) -> Sampler:
    """Borsos, Krause and Levy 2018."""
    return VRBSampler(**trial.bounded())


def avare(trial: Trial) -> Sampler:
    """El Hanchi and Stephens 2020."""
    return AvareSampler(**trial.common())


def empirical_bayes(trial: Trial) -> Sampler:
    """The library's default: no horizon, no bound, no pre-training."""
    return EmpiricalBayesSampler(**trial.common())


def k_vib(trial: Trial) -> Sampler:
    """Zeng et al.: independent draws, whatever the trial's design."""
    common: dict[str, Any] = {**trial.common(), "design": "independent"}
    return KVibSampler(**common, num_rounds=trial.num_rounds, feedback_bound=trial.feedback_bound)


def optimal_client_sampling(trial: Trial) -> Sampler:
    """Chen, Horvath and Richtarik: the oracle of independent draws, whatever the trial's design."""
    common: dict[str, Any] = {**trial.common(), "design": "independent"}
    return OptimalClientSampler(**common)


def optimal(trial: Trial) -> Sampler:
    """The oracle: it is shown every client's norm before each draw, which no real server is."""
    return OptimalSampler(**trial.common())


CONTESTANTS: dict[str, Contestant] = {
    "uniform": uniform,
    "proportional": proportional,
    "adaptive-osmd": adaptive_osmd,
    "adaptive-osmd-x100": adaptive_osmd_x100,
    "doubling-osmd": doubling_osmd,
    "mabs": mabs,
    "vrb": vrb,
    "avare": avare,
    "k-vib": k_vib,
    "empirical-bayes": empirical_bayes,
    "optimal-client-sampling": optimal_client_sampling,
    "optimal": optimal,
}
"""All of them, in the order in which a table shows them; the oracles come last."""


class Guidance(NamedTuple):
    """What to know before choosing a sampler."""

    needs: str
    """What must be known before the first round, beside the number of clients."""
    learns: str
    """What it learns from."""
    designs: str
    guard: str
    """Whether it has a guard against lies by default; every sampler takes one."""
    cost: str
    """Of a round, with K clients drawn, n ever drawn, M in all and E experts (about 8)."""
    best_when: str


GUIDANCE: dict[str, Guidance] = {
    "uniform": Guidance("nothing", "nothing", "all", "none", "K", "updates and sizes are alike"),
    "proportional": Guidance(
        "data sizes", "nothing", "all", "none", "K log M", "sizes differ, norms hardly do"
    ),
    "adaptive-osmd": Guidance(
        "horizon, bound", "norms", "all", "no", "E K log n", "you want the paper's text to the letter"
    ),
    "adaptive-osmd-x100": Guidance(
        "horizon, bound", "norms", "all", "no", "E K log n", "rare large norms decide"
    ),
    "doubling-osmd": Guidance("bound", "norms", "all", "no", "E K log n", "the paper's, without a horizon"),
    "mabs": Guidance("horizon, bound", "norms", "all", "no", "K log n", "only to compare with"),
    "vrb": Guidance("bound", "norms", "all", "no", "K log n", "norms jump, and means of squares are needed"),
    "avare": Guidance("nothing", "norms", "all", "no", "K log n", "only to compare with"),
    "k-vib": Guidance("horizon, bound", "norms", "independent", "no", "M log M", "only to compare with"),
    "empirical-bayes": Guidance(
        "nothing; sizes help", "norms, silence", "all", "yes", "K log n", "the default: start here"
    ),
    "optimal-client-sampling": Guidance(
        "all norms, each round", "nothing", "independent", "no", "M", "never: an oracle sets the scale"
    ),
    "optimal": Guidance(
        "all norms, each round", "nothing", "all", "no", "M", "never: an oracle sets the scale"
    ),
}
"""What ``sortition samplers`` prints."""

ORACLES = frozenset({"optimal-client-sampling", "optimal"})
"""Samplers that are shown what no real server sees: they set the scale, and win nothing."""

INDEPENDENT_ONLY = frozenset({"k-vib", "optimal-client-sampling"})
"""Samplers that are defined for independent draws only."""


def find_contestant(name: str) -> Contestant:
    """A contestant by name, or ``package.module:factory``: a callable that makes a sampler from a Trial.

    Modules in the current directory are found, too.
    """
    if name in CONTESTANTS:
        return CONTESTANTS[name]
    if ":" not in name:
        raise ConfigurationError(
            f"samplers must be out of {', '.join(CONTESTANTS)}, or package.module:factory, got {name!r}"
        )
    contestant: Contestant = imported("samplers", name)
    return contestant


def make_sampler(name: str, contestant: Contestant, trial: Trial) -> Sampler:
    """The contestant's sampler; an error of its factory, which may be a user's, becomes one line."""
    try:
        sampler = contestant(trial)
    except SortitionError as error:
        error.add_note(f"in sampler {name!r}")
        raise
    except Exception as error:
        raise ConfigurationError(f"samplers: {name!r} raised {in_one_line(error)}") from error
    if not isinstance(sampler, Sampler):
        raise ConfigurationError(f"samplers: {name!r} must make a Sampler, got {type(sampler).__name__}")
    return sampler


def with_baseline(contestants: Mapping[str, Contestant]) -> dict[str, Contestant]:
    """The contestants, with uniform sampling first if it is not among them."""
    if not contestants:
        raise ConfigurationError("contestants must name at least one sampler, got none")
    return dict(contestants) if BASELINE in contestants else {BASELINE: uniform, **contestants}
