r"""The two variants of a run: as the text says, and as the authors' published code does.

Where they published no program (Figures 4 and 8, Avare, and MABS and VRB on images), theirs is what their
other programs do, carried over. :data:`DEPARTURES` lists where the authors' code departs from their text.
The parts of their variant are kept here, out of the library proper: what the samplers are fed, their rates,
how repeated draws count, and the batch size on images. Each is built on the library's own parts. The rest of
this file turns settings into the federation, the sampler and the algorithm of a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    Cohort,
    ConfigurationError,
    FixedSampler,
    MABSSampler,
    OptimalSampler,
    OSMDSampler,
    ProportionalSampler,
    Sampler,
    UniformSampler,
    VRBSampler,
)
from sortition.core.errors import DataError
from sortition.core.rates import initial_expert_weights
from sortition.core.state import array
from sortition.core.types import FloatArray, IntArray
from sortition.core.variance import aggregate
from sortition.engine.fixed import Dense
from sortition.lab.algorithms import FedSGD, Scaffold
from sortition.lab.problems.idx import images_digest, load_images
from sortition.lab.problems.least_squares import (
    AUTHORS_SEED,
    Data,
    LeastSquares,
    authors_heterogeneous,
    heterogeneous,
    one_coordinate,
)
from sortition.lab.problems.softmax import AUTHORS_SIZES, SIZES, SoftmaxFederation, image_federation
from sortition.lab.reproduce.figures import IMAGES, SYNTHETIC, RunSettings
from sortition.lab.training import Algorithm, Problem

NUM_IMAGE_CLIENTS = 500
SCAFFOLD_STEPS = 5
SCAFFOLD_RATE = 1e-3
"""The learning rate of OSMD with SCAFFOLD (last appendix)."""

DEPARTURES: tuple[tuple[str, str, str], ...] = (
    (
        "Feedback",
        "The norm of the mini-batch mean; its bound A_max is taken from the same quantity.",
        "The norm of the mini-batch sum, while A_max is taken from the mean: B² = 100 times "
        "what its bound says. On images A_max has 1/M where the feedback has λ_m: up to 113 times. "
        "This matters most of all.",
    ),
    (
        "Expert rates",
        "K α³ / (M³ A_max) √(2 ln M / T) 2^(e-1)",
        "K² α³ / (M³ A_max) √(ln M / (2T)) 2^(e-1): K/2 = 2.5 times as much.",
    ),
    (
        "Repeated draws",
        "Count as often as drawn, in every estimate.",
        "Count once in the sampler's gradient estimate, and as often as drawn in its loss estimate.",
    ),
    (
        "Arithmetic",
        "Exact, in logarithms.",
        "An expert becomes uniform where exp overflows. A weight that underflows to 0 stays there, until all "
        "are 0 and become equal. It matters at σ = 10 only, in the third digit, and at α = 0.7 and more.",
    ),
    (
        "Synthetic data",
        "Features with covariance s_m Σ; w* with variance 3.",
        "Features with standard deviation s_m Σ_jj; w* with standard deviation 3; numpy's "
        "legacy generator with seed 111, set anew for each σ.",
    ),
    (
        "Loss and regret",
        "Regret of the round's own updates, with the factor 1/K.",
        "Regret at the model after the step, on the mini-batches of that step (uniform sampling: on "
        "others), without 1/K: five times as much for K = 5.",
    ),
    (
        "Draws without replacement",
        "The weights of Appendix A.2 in every estimate.",
        "These in the model's step; 1/(K p), as with replacement, in the sampler's estimates.",
    ),
    (
        "VRB and MABS",
        "Fed norms; VRB's L and MABS's bound are those of the feedback.",
        "VRB is fed losses, with L = 1.5 max(loss)²; MABS has the mean of a where the square "
        "of its bound belongs.",
    ),
    (
        "Images",
        "Sizes 1, 5, 30, 100; batches of min(5, n_m); mean cross-entropy.",
        "Sizes 1, 10, 30, 100, by lot; the batch size shrinks for good once a one-image client is "
        "drawn; the mean losses of batches of 64 are added up and divided by the number of images; a bias.",
    ),
)

OUR_READINGS: tuple[str, ...] = (
    "Data are made once for each σ or ν (seed 111, as in the authors' code for σ); the repeats "
    "differ in draws and mini-batches. Image federations are dealt anew for each repeat.",
    "Mini-batches are drawn with replacement in the text's variant (Algorithm 3 says i.i.d.) "
    "and without in the authors', as their code does.",
    "Images go to clients at random, with the expected number of clients of each size and no bias, anew for "
    "each repeat; the authors' code draws the sizes, too, and deals once. Where the set at hand has "
    "10,000 images, the authors' sizes leave 9 validation images a client in the place of 10.",
    "SCAFFOLD: 5 local steps on mini-batches of 10, global step 1, local step size chosen out "
    "of 0.001 to 0.1 for each sampler and σ by the final loss; the paper gives none of "
    "these.",
    "Figure 4 has the same data generator in both variants; the variants differ in the "
    "sampler's rates and feedback.",
)


def authors_rate_scale(cohort_size: int) -> float:
    r"""The authors' expert rates over the text's: K/2.

    .. math:: \frac{K^2\alpha^3}{M^3 A}\sqrt{\frac{\ln M}{2T}} \Big/
              \frac{K\alpha^3}{M^3 A}\sqrt{\frac{2\ln M}{T}} = \frac K2

    >>> authors_rate_scale(5)
    2.5
    """
    return cohort_size / 2.0


class AuthorsAdaptiveOSMDSampler(AdaptiveOSMDSampler):
    r"""Adaptive-OSMD as the authors' code has it: all entries of all experts, in plain double precision.

    Repeated draws count once in the gradient estimate, and all of them in the loss estimate. Draws without
    replacement are weighted as if they were with. Where exp overflows, an expert becomes uniform. An expert
    whose weight underflows to 0 stays there, until all are 0: then they become equal.
    """

    _experts_entries: FloatArray
    """p_e, one row an expert."""
    _thetas: FloatArray

    def _begin(self) -> None:
        super()._begin()
        number, clients = self._num_experts(), self._roster.ids
        self._experts_entries = np.full((number, clients), 1.0 / clients)
        self._thetas = initial_expert_weights(number)
        self._distribution = self._dense = Dense(self._roster)

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        if not self._bound.known_from(log_feedback):
            return
        log_rates, log_meta_rate = self._log_rates()
        size, drawn = self._cohort_size, cohort.clients
        once = np.exp(log_feedback) / (size * cohort.probabilities) / size
        own = self._experts_entries[:, drawn]
        losses = np.sum(cohort.counts * once / own, axis=1)
        with np.errstate(over="ignore", under="ignore"):
            self._experts_entries[:, drawn] = own * np.exp(np.exp(log_rates)[:, None] * once / own**2)
            thetas = self._thetas * np.exp(-math.exp(log_meta_rate) * losses)
        self._experts_entries = self._above_floor(self._experts_entries)
        alive = thetas.sum() > 0.0
        self._thetas = thetas / thetas.sum() if alive else np.full(len(thetas), 1.0 / len(thetas))
        self._dense.set(self._thetas @ self._experts_entries)
        self._bound.learnt_rounds += 1

    def _above_floor(self, values: FloatArray) -> FloatArray:
        """All rows at once: ``project_above_floor`` with one floor for all, and uniform where not finite."""
        clients = values.shape[1]
        floor = self._exploration / clients
        ordered = np.sort(values, axis=1)
        rest = np.cumsum(ordered[:, ::-1], axis=1)[:, ::-1]  # the values from this one on
        left = 1.0 - floor * np.arange(clients)  # what the floors of those before leave
        with np.errstate(invalid="ignore"):
            stays = ordered * left > floor * rest
            first = np.where(stays.any(axis=1), np.argmax(stays, axis=1), clients - 1)[:, None]
            factors = left[first] / np.take_along_axis(rest, first, axis=1)
            projected = np.maximum(floor, factors * values)
        finite = np.isfinite(rest[:, :1])
        return np.asarray(np.where(finite, projected, 1.0 / clients))

    @property
    def expert_weights(self) -> FloatArray:
        """theta_e, the experts' weights in the mixture, slowest first."""
        return self._thetas.copy()

    def _state(self) -> dict[str, Any]:
        learnt = {"experts_entries": self._experts_entries.copy(), "thetas": self._thetas.copy()}
        return {**super()._state(), **learnt, "masses": self._dense.masses}

    def _restore(self, state: Mapping[str, Any]) -> None:
        super()._restore(state)
        number, clients = self._num_experts(), self._roster.ids
        self._experts_entries = array(state, "experts_entries", np.float64, (number, clients))
        self._thetas = array(state, "thetas", np.float64, (number,))
        self._distribution = self._dense = Dense(self._roster)
        self._dense.restore(state)


@dataclass(frozen=True)
class SummedSGD(FedSGD):
    """Mini-batch SGD that reports the norm of the mini-batch **sum**: B times that of the mean."""

    def __call__(
        self, state: FloatArray, cohort: Cohort, problem: Problem, round_index: int
    ) -> tuple[FloatArray, FloatArray]:
        """The next model as in ``FedSGD``, and the norms times the batch size."""
        following, norms = super().__call__(state, cohort, problem, round_index)
        assert isinstance(problem, LeastSquares)
        return following, norms * problem.batch_size


@dataclass(frozen=True)
class LossSGD(FedSGD):
    """Mini-batch SGD that reports the clients' mini-batch **losses** instead of norms (VRB)."""

    def __call__(
        self, state: FloatArray, cohort: Cohort, problem: Problem, round_index: int
    ) -> tuple[FloatArray, FloatArray]:
        """The next model as in ``FedSGD``, and the losses at the current one."""
        following, _ = super().__call__(state, cohort, problem, round_index)
        assert isinstance(problem, (LeastSquares, SoftmaxFederation))
        return following, problem.batch_losses(state, cohort.clients, round_index)


@dataclass
class ShrinkingSGD:
    """Mini-batch SGD on images; a small client reduces the batch size of all later rounds.

    Clients are visited in the order of their ids. Not a pure function: the batch size is remembered, which is
    the departure. Reports the norms of the mini-batch means, or the losses.
    """

    step_size: float
    report_losses: bool
    batch_size: int = 0

    def start(self, problem: SoftmaxFederation) -> FloatArray:
        """The federation's initial model."""
        return problem.initial_model()

    def all_norms(self, state: FloatArray, problem: SoftmaxFederation, round_index: int) -> FloatArray:
        """The norm of each client's whole mini-batch mean in this round, drawn or not."""
        return problem.all_norms(state, round_index)

    def __call__(
        self, state: FloatArray, cohort: Cohort, problem: SoftmaxFederation, round_index: int
    ) -> tuple[FloatArray, FloatArray]:
        """The next model, and what the sampler is fed."""
        sizes = self._shrink(problem, cohort.clients)
        updates = problem.updates(state, cohort.clients, round_index, sizes)
        step = aggregate(cohort, problem.client_weights[cohort.clients], updates)
        following = state - self.step_size * step
        if self.report_losses:
            return following, problem.batch_losses(state, cohort.clients, round_index)
        return following, np.linalg.norm(updates, axis=1)

    def _shrink(self, problem: SoftmaxFederation, clients: IntArray) -> IntArray:
        start = self.batch_size or problem.batch_size
        sizes = np.minimum.accumulate(np.minimum(start, problem.client_sizes[clients]))
        self.batch_size = int(sizes[-1])
        return np.asarray(sizes)


EVALUATED = 64
"""Images that the authors' code evaluates at a time."""


def authors_image_loss(problem: SoftmaxFederation, model: FloatArray) -> float:
    """Batch-mean losses added up and divided by the number of **samples**: far below the mean cross-entropy.

    A client with more than 64 images has several batches; each counts as the mean of them all.
    """
    batches = np.ceil(problem.client_sizes / EVALUATED)
    losses = problem.client_losses(model, np.arange(problem.num_clients))
    return float(losses @ batches / problem.client_sizes.sum())


@lru_cache(maxsize=3)
def _images(name: str, directory: Path | None, digest: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images, labels, source = load_images(name, directory)
    if (found := images_digest(images, labels)) != digest:
        raise DataError(
            f"the images of {name} have changed since the start: digest {digest!r} then, "
            f"{found!r} now ({source})"
        )
    return images, labels


def make_problem(settings: RunSettings, data: Path | None) -> LeastSquares | SoftmaxFederation:
    """The federation. Synthetic data are the same for every seed; images are dealt anew."""
    authors = settings.variant == "authors"
    if settings.problem in IMAGES:
        images, labels = _images(settings.problem, data, settings.images)
        return image_federation(
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
    """The data that all repeats and samplers share: made once, read-only."""
    if name == "one-coordinate":
        data = one_coordinate(spread, AUTHORS_SEED)
    elif name == "heterogeneous":
        data = (authors_heterogeneous if authors else heterogeneous)(spread, AUTHORS_SEED)
    else:
        raise ConfigurationError(f"problem must be one of {', '.join((*SYNTHETIC, *IMAGES))}, got {name!r}")
    for values in data:
        values.setflags(write=False)
    return data


def make_algorithm(settings: RunSettings) -> Algorithm:
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
    problem: LeastSquares | SoftmaxFederation
    feedback: FloatArray
    """a_m of the initial model."""
    losses: FloatArray
    """Mini-batch losses of the initial model."""

    @property
    def bound(self) -> float:
        r"""A_max: the largest feedback of the initial model.

        The authors' code has 1/M in the place of :math:`\lambda_m`; where clients are of one size it is that.
        """
        if self.settings.variant == "text":
            return float(self.feedback.max())
        return float(np.max(self.feedback / self.problem.client_weights**2)) / self.problem.num_clients**2

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
    if start.settings.variant == "authors":
        # fed losses: L = 1.5 max(loss)^2, in the units of lambda^2 loss^2
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
