r"""Federated algorithms: one round each, as a pure function of state and cohort.

FedSGD (Algorithm 3), FedAvg (Algorithm 4), FedAdam, SCAFFOLD (last appendix) and the two-sampler scheme for
a personalised objective (Appendix D.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import positive_number, whole_number
from sortition.core.variance import aggregate
from sortition.lab.client_memory import UpdateMemory
from sortition.lab.training import LocalProblem, Problem, all_norms


def combined(
    cohort: Cohort, client_weights: FloatArray, updates: FloatArray, memory: UpdateMemory | None
) -> tuple[FloatArray, FloatArray]:
    """The aggregate, and the norms to learn from: of the updates or, with a memory, of the residuals."""
    if memory is not None:
        return memory.combine(cohort, updates, client_weights)
    return aggregate(cohort, client_weights, updates), np.sqrt((updates * updates).sum(axis=1))


def all_residuals(updates: FloatArray, memory: UpdateMemory | None) -> FloatArray:
    """What is drawn from the updates of all clients, one row each: with a memory, their residuals."""
    b = 0.0 if memory is None else memory.coefficient
    if memory is None or b == 0.0:
        return updates
    return updates - b * np.array([memory.remembered(client) for client in range(len(updates))])


@dataclass(frozen=True)
class FedSGD:
    r"""One round of mini-batch SGD: each drawn client sends one gradient, the server takes one step.

    With :math:`\mu` = ``step_size`` and :math:`g^t_m` the cohort's mini-batch gradients,

    .. math:: w^{t+1} = w^t - \mu \sum_{m \in S^t} \lambda_m \, \mathrm{weight}_m \, g^t_m

    which with replacement is :math:`w^t - \mu \frac1K \sum_{m \in S^t} \frac{\lambda_m}{p^t_m} g^t_m`
    (Algorithm 3, lines 5 to 12, Equation 12). The sampler learns from the norms (line 13) elsewhere.

    With a ``memory`` the step is along its estimate, and the norms are those of the residuals. A memory
    changes from round to round, so each run needs one of its own.
    """

    step_size: float
    memory: UpdateMemory | None = None

    def __post_init__(self) -> None:
        positive_number("step_size", self.step_size)

    def start(self, problem: Problem) -> FloatArray:
        """The federation's initial model."""
        return problem.initial_model()

    def all_norms(self, state: FloatArray, problem: Problem, round_index: int) -> FloatArray:
        """The norm of each client's mini-batch gradient, or residual, in this round, drawn or not."""
        if self.memory is None:
            return all_norms(problem, state, round_index)
        updates = problem.updates(state, np.arange(problem.num_clients), round_index)
        return np.asarray(np.linalg.norm(all_residuals(updates, self.memory), axis=1))

    def __call__(
        self, state: FloatArray, cohort: Cohort, problem: Problem, round_index: int
    ) -> tuple[FloatArray, FloatArray]:
        """The next model, and the norms of the cohort's updates, aligned with ``cohort.clients``."""
        updates = problem.updates(state, cohort.clients, round_index)
        step, norms = combined(cohort, problem.client_weights[cohort.clients], updates, self.memory)
        return state - self.step_size * step, norms


@dataclass(frozen=True)
class LocalSteps:
    r"""Algorithms whose clients take ``local_steps`` (B) steps of ``local_step_size`` (:math:`\mu_l`)."""

    local_step_size: float
    local_steps: int
    step_size: float = 1.0

    def __post_init__(self) -> None:
        positive_number("local_step_size", self.local_step_size)
        whole_number("local_steps", self.local_steps, least=1)
        positive_number("step_size", self.step_size)

    def moves(
        self,
        model: FloatArray,
        clients: IntArray,
        problem: LocalProblem,
        round_index: int,
        corrections: FloatArray | None = None,
    ) -> FloatArray:
        r""":math:`w^t - w^{t,B}_m`, one row for each of ``clients``; all of them at once.

        .. math:: w^{t,b+1}_m = w^{t,b}_m
                  - \mu_l \big(\nabla\phi(w^{t,b}_m; \xi^{t,b}_m) + \mathrm{correction}_m\big),
                  \qquad w^{t,0}_m = w^t            (Algorithm 4, lines 7 to 10)
        """
        models = np.tile(model, (len(clients), 1))
        for step in range(self.local_steps):
            direction = problem.local_gradients(models, clients, round_index, step)
            if corrections is not None:
                direction = direction + corrections
            models = models - self.local_step_size * direction
        return model - models


@dataclass(frozen=True)
class FedAvg(LocalSteps):
    r"""One round of FedAvg: each drawn client takes B local steps, the server moves along their mean.

    With :math:`\mu_l` = ``local_step_size``, :math:`B` = ``local_steps``, :math:`\mu` = ``step_size`` and
    :math:`g^t_m = w^t - w^{t,B}_m`,

    .. math:: w^{t+1} = w^t - \mu \sum_{m \in S^t} \lambda_m\,\mathrm{weight}_m\, g^t_m     (Equation 15)

    The sampler learns from the norms :math:`\|g^t_m\| / (\mu_l \sqrt B)`, so that

    .. math:: a^t_m = \frac{\lambda_m^2 \|g^t_m\|^2}{\mu_l^2 B}
              = \frac{\lambda_m^2}{B} \Big\|\sum_b \nabla\phi(w^{t,b}_m; \xi^{t,b}_m)\Big\|^2

    (Algorithm 4, line 13) neither vanishes with :math:`\mu_l` nor grows with B where gradients are noise.

    With a ``memory`` the server moves along its estimate, and the norms are those of the residuals. A memory
    changes from round to round, so each run needs one of its own.
    """

    memory: UpdateMemory | None = None

    def start(self, problem: LocalProblem) -> FloatArray:
        """The federation's initial model."""
        return problem.initial_model()

    def all_norms(self, state: FloatArray, problem: LocalProblem, round_index: int) -> FloatArray:
        """The scaled norm of each client's update in this round, drawn or not."""
        updates = self.updates(state, np.arange(problem.num_clients), problem, round_index)
        return self.scaled(np.linalg.norm(all_residuals(updates, self.memory), axis=1))

    def __call__(
        self, state: FloatArray, cohort: Cohort, problem: LocalProblem, round_index: int
    ) -> tuple[FloatArray, FloatArray]:
        """The next model, and the scaled norms of the cohort's updates, aligned with ``cohort.clients``."""
        updates = self.updates(state, cohort.clients, problem, round_index)
        step, norms = combined(cohort, problem.client_weights[cohort.clients], updates, self.memory)
        return state - self.step_size * step, self.scaled(norms)

    def updates(
        self, model: FloatArray, clients: IntArray, problem: LocalProblem, round_index: int
    ) -> FloatArray:
        """g_m of ``clients``, one row each: how far, and in which direction, their models move."""
        return self.moves(model, clients, problem, round_index)

    def scaled(self, norms: FloatArray) -> FloatArray:
        r""":math:`\|g_m\| / (\mu_l \sqrt B)`."""
        return np.asarray(norms / (self.local_step_size * math.sqrt(self.local_steps)))


@dataclass(frozen=True, eq=False)
class AdamState:
    """What FedAdam carries from round to round."""

    model: FloatArray
    first: FloatArray
    second: FloatArray


@dataclass(frozen=True)
class FedAdam(FedAvg):
    r"""FedAvg whose server moves by Adam (Reddi et al. 2021, Algorithm 2).

    With :math:`g^t` the aggregate of FedAvg and :math:`\mu` = ``step_size``,

    .. math:: m \leftarrow \beta_1 m + (1 - \beta_1)\,g^t, \qquad
              v \leftarrow \beta_2 v + (1 - \beta_2)\,(g^t)^2, \qquad
              w^{t+1} = w^t - \mu\, \frac{m}{\sqrt v + \tau}

    with :math:`\beta_1, \beta_2` = ``decay``, and :math:`\tau` = ``adaptivity``. There is no correction of
    m and v for their start at zero, as in the paper.
    """

    decay: tuple[float, float] = (0.9, 0.99)
    adaptivity: float = 1e-3

    def start(self, problem: LocalProblem) -> AdamState:  # type: ignore[override]
        """The federation's initial model, and moments of zero."""
        model = problem.initial_model()
        return AdamState(model, np.zeros_like(model), np.zeros_like(model))

    def all_norms(self, state: AdamState, problem: LocalProblem, round_index: int) -> FloatArray:  # type: ignore[override]
        """The scaled norm of each client's update in this round, drawn or not."""
        return super().all_norms(state.model, problem, round_index)

    def __call__(  # type: ignore[override]
        self, state: AdamState, cohort: Cohort, problem: LocalProblem, round_index: int
    ) -> tuple[AdamState, FloatArray]:
        """The next state, and the scaled norms of the cohort's updates."""
        updates = self.updates(state.model, cohort.clients, problem, round_index)
        step, norms = combined(cohort, problem.client_weights[cohort.clients], updates, self.memory)
        kept, kept_square = self.decay
        first = kept * state.first + (1.0 - kept) * step
        second = kept_square * state.second + (1.0 - kept_square) * step**2
        model = state.model - self.step_size * first / (np.sqrt(second) + self.adaptivity)
        return AdamState(model, first, second), self.scaled(norms)


@dataclass(frozen=True, eq=False)
class ScaffoldState:
    """What SCAFFOLD carries from round to round."""

    model: FloatArray
    server_control: FloatArray
    """c, always the weighted mean of the clients' controls."""
    client_controls: FloatArray
    """c_m, one row a client."""


@dataclass(frozen=True)
class Scaffold(LocalSteps):
    r"""One round of SCAFFOLD (Karimireddy et al. 2020): control variates correct the local steps' drift.

    .. math:: w^{t,b+1}_m = w^{t,b}_m - \mu_l\big(\nabla\phi(w^{t,b}_m; \xi^{t,b}_m) - c_m + c\big), \qquad
              c_m^+ = c_m - c + \frac{w^t - w^{t+}_m}{B \mu_l}            (option II)

    .. math:: w^{t+1} = w^t + \mu \sum_{m \in S^t} \lambda_m\,\mathrm{weight}_m\,(w^{t+}_m - w^t), \qquad
              c \leftarrow c + \sum_{m \in S^t} \lambda_m (c_m^+ - c_m)

    The sampler learns from :math:`\|w^{t+}_m - w^t\|` (last appendix). Uniform draws and weights make this
    the original algorithm; the model's step stays unbiased for any sampler and design.
    """

    def start(self, problem: LocalProblem) -> ScaffoldState:
        """The federation's initial model, and controls of zero."""
        model = problem.initial_model()
        return ScaffoldState(model, np.zeros_like(model), np.zeros((problem.num_clients, model.size)))

    def all_norms(self, state: ScaffoldState, problem: LocalProblem, round_index: int) -> FloatArray:
        """The norm of each client's update in this round, drawn or not."""
        updates = self.updates(state, np.arange(problem.num_clients), problem, round_index)
        return np.asarray(np.linalg.norm(updates, axis=1))

    def __call__(
        self, state: ScaffoldState, cohort: Cohort, problem: LocalProblem, round_index: int
    ) -> tuple[ScaffoldState, FloatArray]:
        """The next state, and the norms of the cohort's updates, aligned with ``cohort.clients``."""
        drawn = cohort.clients
        updates = self.updates(state, drawn, problem, round_index)
        weights = problem.client_weights[drawn]
        change = updates / (self.local_steps * self.local_step_size) - state.server_control
        controls = state.client_controls.copy()
        controls[drawn] += change
        following = ScaffoldState(
            model=state.model - self.step_size * aggregate(cohort, weights, updates),
            server_control=state.server_control + weights @ change,
            client_controls=controls,
        )
        return following, np.asarray(np.linalg.norm(updates, axis=1))

    def updates(
        self, state: ScaffoldState, clients: IntArray, problem: LocalProblem, round_index: int
    ) -> FloatArray:
        r""":math:`w^t - w^{t+}_m` of ``clients``, one row each."""
        corrections = state.server_control - state.client_controls[clients]
        return self.moves(state.model, clients, problem, round_index, corrections)


class PersonalisedProblem(Protocol):
    r"""Minimise :math:`h(w) = \sum_m \lambda_m F_m(w, \hat\beta_m(w))` (Appendix D.1).

    Here :math:`\hat\beta_m(w) = \arg\min_\beta G_m(w, \beta)` is the client's own answer to the shared w.
    """

    @property
    def num_clients(self) -> int:
        """M, the number of clients."""

    @property
    def client_weights(self) -> FloatArray:
        """lambda_m; they sum to one."""

    def direct_gradients(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        r""":math:`\nabla_1 F_m = \nabla_w F_m(w, \hat\beta_m(w))`, one row a client."""

    def response_gradients(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        r""":math:`\nabla_2 F_m`, through the local parameters' answer to w, one row a client."""


@dataclass(frozen=True)
class Personalised:
    r"""One step of "doubly variance reduction": two cohorts, each drawn by a sampler of its own.

    .. math:: g^t_i = \sum_{m \in S^t_i} \lambda_m\,\mathrm{weight}_{i,m}\, g^t_{i,m}, \qquad
              w^{t+1} = w^t - \mu\,(g^t_1 + g^t_2)

    A client that matters for the shared part need not matter for the response part, so each sampler learns
    from the norms of its own part.

    Deviation: the text's gradient (Appendix D.1) has a factor 1/M beside :math:`\lambda_m`, which its
    objective has not; we take the gradient of the objective, and a test checks it by finite differences.
    """

    step_size: float

    def __post_init__(self) -> None:
        positive_number("step_size", self.step_size)

    def __call__(
        self,
        model: FloatArray,
        cohorts: tuple[Cohort, Cohort],
        problem: PersonalisedProblem,
        round_index: int,
    ) -> tuple[FloatArray, tuple[FloatArray, FloatArray]]:
        """The next model, and for each cohort the norms of its part, aligned with its clients."""
        first, second = cohorts
        direct = problem.direct_gradients(model, first.clients, round_index)
        response = problem.response_gradients(model, second.clients, round_index)
        weights = problem.client_weights
        step = aggregate(first, weights[first.clients], direct)
        step = step + aggregate(second, weights[second.clients], response)
        norms = (np.linalg.norm(direct, axis=1), np.linalg.norm(response, axis=1))
        return model - self.step_size * step, norms
