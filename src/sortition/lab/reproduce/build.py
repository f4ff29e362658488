"""Settings to objects: the federation, the sampler and the algorithm of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortition.core.errors import ConfigurationError, DataError
from sortition.core.protocols import Sampler
from sortition.core.types import FloatArray
from sortition.lab.algorithms.fedsgd import FedSGD
from sortition.lab.algorithms.scaffold import Scaffold
from sortition.lab.problems.idx import images_digest, load_images
from sortition.lab.problems.images import AUTHORS_SIZES, SIZES, ImageFederation
from sortition.lab.problems.least_squares import LeastSquares
from sortition.lab.problems.synthetic import (
    AUTHORS_SEED,
    Data,
    authors_heterogeneous,
    heterogeneous,
    one_coordinate,
)
from sortition.lab.reproduce.authors import (
    AuthorsAdaptiveOSMDSampler,
    LossSGD,
    ShrinkingSGD,
    SummedSGD,
    authors_rate_scale,
)
from sortition.lab.reproduce.settings import IMAGES, RunSettings
from sortition.samplers.avare import AvareSampler
from sortition.samplers.mabs import MABSSampler
from sortition.samplers.oracles import OptimalSampler
from sortition.samplers.osmd import AdaptiveOSMDSampler, OSMDSampler
from sortition.samplers.static import FixedSampler, ProportionalSampler, UniformSampler
from sortition.samplers.vrb import VRBSampler

NUM_IMAGE_CLIENTS = 500
SCAFFOLD_STEPS = 5
SCAFFOLD_RATE = 1e-3
"""The learning rate of OSMD with SCAFFOLD (last appendix)."""


@lru_cache(maxsize=3)
def _images(name: str, directory: Path | None, digest: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images, labels, source = load_images(name, directory)
    if (found := images_digest(images, labels)) != digest:
        raise DataError(f"{name} must be the images of the start, {digest!r}, got {found!r} from {source}")
    return images, labels


def make_problem(settings: RunSettings, data: Path | None) -> LeastSquares | ImageFederation:
    """The federation: the same data for every seed where it is synthetic, dealt anew where it is images."""
    authors = settings.variant == "authors"
    if settings.problem in IMAGES:
        images, labels = _images(settings.problem, data, settings.images)
        return ImageFederation(
            images,
            labels,
            num_clients=NUM_IMAGE_CLIENTS,
            sizes=AUTHORS_SIZES if authors else SIZES,
            seed=settings.seed,
        )
    return LeastSquares(
        *_synthetic(settings.problem, settings.spread, authors),
        batch_size=10,
        local_batch_size=10,
        distinct=authors,
        seed=settings.seed,
    )


@lru_cache(maxsize=1)
def _synthetic(name: str, spread: float, authors: bool) -> Data:
    """The data that all repeats and samplers have in common: made once, and never written to."""
    if name == "one-coordinate":
        data = one_coordinate(spread, AUTHORS_SEED)
    elif name == "heterogeneous":
        data = (authors_heterogeneous if authors else heterogeneous)(spread, AUTHORS_SEED)
    else:
        raise ConfigurationError(f"problem must be synthetic or a set of images, got {name!r}")
    for array in data:
        array.setflags(write=False)
    return data


def make_algorithm(settings: RunSettings) -> Any:
    """The algorithm, which in the authors' variant also decides what the sampler is fed."""
    if settings.algorithm == "scaffold":
        return Scaffold(local_step_size=settings.step_size, local_steps=SCAFFOLD_STEPS)
    if settings.variant == "text":
        return FedSGD(settings.step_size)
    losses = settings.sampler == "vrb"
    if settings.problem in IMAGES:
        return ShrinkingSGD(settings.step_size, report_losses=losses)
    return LossSGD(settings.step_size) if losses else SummedSGD(settings.step_size)


@dataclass(frozen=True)
class Start:
    """What is known before the first round: a pre-training pass over all clients (Section 6)."""

    settings: RunSettings
    problem: LeastSquares | ImageFederation
    feedback: FloatArray
    """a_m of the initial model."""
    losses: FloatArray
    """Mini-batch losses of the initial model."""

    @property
    def bound(self) -> float:
        """A_max: the largest feedback of the initial model."""
        return float(self.feedback.max())

    def common(self) -> dict[str, Any]:
        """The arguments that every sampler takes."""
        weights = self.problem.client_weights
        return {
            "num_clients": self.problem.num_clients,
            "cohort_size": self.settings.cohort_size,
            "client_weights": None if np.all(weights == weights[0]) else weights,  # alike: no look-ups
            "design": self.settings.design,
            "seed": self.settings.seed,
            "guard": None,  # the paper to the letter
        }


def make_sampler(start: Start) -> Sampler:
    """The sampler that the settings name."""
    name = start.settings.sampler
    if name not in _SAMPLERS:
        raise ConfigurationError(f"sampler must be one of {', '.join(_SAMPLERS)}, got {name!r}")
    return _SAMPLERS[name](start)


def _adaptive(start: Start) -> Sampler:
    arguments = {
        **start.common(),
        "num_rounds": start.settings.num_rounds,
        "exploration": start.settings.exploration,
        "feedback_bound": start.bound,
    }
    if start.settings.variant == "text":
        return AdaptiveOSMDSampler(**arguments)
    scale = authors_rate_scale(start.settings.cohort_size)
    return AuthorsAdaptiveOSMDSampler(**arguments, rate_scale=scale)


def _mabs(start: Start) -> Sampler:
    # the authors' code has the mean of a where the square of a bound on it should be
    authors = start.settings.variant == "authors"
    bound = float(np.sqrt(start.feedback.mean())) if authors else start.bound
    return MABSSampler(
        **start.common(),
        num_rounds=start.settings.num_rounds,
        exploration=start.settings.exploration,
        feedback_bound=bound,
    )


def _vrb(start: Start) -> Sampler:
    bound = start.bound
    if (
        start.settings.variant == "authors"
    ):  # fed losses: L = 1.5 max(loss)^2, in the units of lambda^2 loss^2
        bound = 1.5 * float(np.max(start.problem.client_weights * start.losses) ** 2)
    return VRBSampler(**start.common(), exploration=start.settings.exploration, feedback_bound=bound)


def _importance(start: Start) -> Sampler:
    assert isinstance(start.problem, LeastSquares)
    importance = start.problem.client_weights * start.problem.smoothness()
    return FixedSampler(**start.common(), probabilities=importance / importance.sum())


_SAMPLERS: dict[str, Callable[[Start], Sampler]] = {
    "uniform": lambda start: UniformSampler(**start.common()),
    "proportional": lambda start: ProportionalSampler(**start.common()),
    "adaptive-osmd": _adaptive,
    "mabs": _mabs,
    "vrb": _vrb,
    "avare": lambda start: AvareSampler(**start.common()),
    "optimal": lambda start: OptimalSampler(**start.common()),
    "importance": _importance,
    "osmd": lambda start: OSMDSampler(**start.common(), learning_rate=SCAFFOLD_RATE, exploration=0.4),
}
