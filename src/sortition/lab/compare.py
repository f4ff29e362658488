"""Several samplers on one federation, side by side, and what each is worth in rounds."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.designs import INCLUSION_DESIGNS, Design
from sortition.core.errors import ConfigurationError, SortitionError
from sortition.core.types import FloatArray
from sortition.core.validation import MOST_REPEATED, named_keywords, positive_number, whole_number
from sortition.lab.arena.environments import ProblemFactory, Training
from sortition.lab.arena.tournament import TARGET_SHARE, train_one
from sortition.lab.contestants import (
    BASELINE,
    CONTESTANTS,
    INDEPENDENT_ONLY,
    Contestant,
    find_contestant,
    with_baseline,
)
from sortition.lab.imported import EXTRAS, in_one_line
from sortition.lab.parallel import Progress, run_tasks
from sortition.lab.training import Problem, Trajectory, check_problem
from sortition.lab.versions import versions

DEFAULT_SAMPLERS = tuple(
    name for name in CONTESTANTS if name not in {"doubling-osmd", "adaptive-osmd", *INDEPENDENT_ONLY}
)
FACTORS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Multiples of the step size that are tried for each sampler."""
TUNING_REPEATS = 2
"""Federations that step sizes are chosen on."""
CONFIDENCE = 0.95
LAST_SHARE = 0.1
SOME = 20
"""Clients whose updates tell whether two federations are the same."""
WIDE = 2.0
"""An interval whose ends differ by this factor is too wide to show that there is no difference."""
FLAT = 0.005
"""If less than this share of the progress is made in the second half, the loss is called flat."""


@dataclass(frozen=True)
class Row:
    """One sampler, over the repeats.

    ``rounds_to_target`` is how many rounds it took, ``rounds_ratio`` the same over uniform sampling, with its
    95% ``interval``. ``final_loss`` and ``final_loss_spread`` are mean and standard deviation of the loss in
    the end. ``mean_variance_ratio`` says how noisy its probabilities make a step; 1 is the least.
    ``losses``, ``losses_spread`` and ``variance_ratios`` are by round, ``losses_of_repeats`` by repeat and
    round.
    """

    name: str
    """Of the sampler."""
    step_size: float
    """Of the server; with ``tune`` the one that was found for this sampler."""
    rounds_to_target: float | None
    """Rounds until the fitted curve is down to the target; None if it never is."""
    rounds_ratio: float | None
    """The same over that of uniform sampling: 0.5 means half the rounds."""
    interval: tuple[float, float] | None
    """95% interval of the ratio; None with one repeat, or if leaving one out changes who gets there."""
    final_loss: float
    """Mean loss over the last tenth of the rounds."""
    final_loss_spread: float
    """Standard deviation of the final loss between repeats."""
    mean_variance_ratio: float
    r"""Variance by norms over that of the best probabilities, mean over the rounds; 1 is the least.

    With :math:`a_m = (\lambda_m \|g_m\|)^2` it is :math:`\sum_m a_m (1/\pi_m - 1)` for designs with a known
    chance :math:`\pi_m` to be in, the variance of independent draws; otherwise :math:`\sum_m a_m / p_m`. The
    variance of the aggregate also depends on how updates agree. To know that, whole updates of all clients
    and hundreds of draws in each round would be needed.
    """
    losses: FloatArray
    """Training loss after each round, mean over the repeats."""
    losses_spread: FloatArray
    """Its standard deviation between repeats."""
    variance_ratios: FloatArray
    """Variance by norms over that of the best probabilities in each round, mean over the repeats."""
    losses_of_repeats: FloatArray
    """Training loss after each round, a row a repeat; that of seed ``seed`` is the first."""

    @property
    def difference(self) -> str:
        """Whether it takes fewer or more rounds than uniform sampling, as far as the repeats show it.

        A wide interval that holds 1 shows nothing.
        """
        if self.name == BASELINE or self.interval is None:
            return ""
        low, high = self.interval
        if high < 1.0 or low > 1.0:
            return "fewer" if high < 1.0 else "more"
        return "no difference" if high < WIDE * low else "not shown"


@dataclass(frozen=True, repr=False)
class Comparison:
    """The rows of a comparison, and what they were measured against. ``print`` it to see the table."""

    problem: str
    num_clients: int
    cohort_size: int
    num_rounds: int
    repeats: int
    design: Design
    memory: bool
    tuned: bool
    seed: int
    step_size: float
    """As given; with ``tuned`` each row has its own."""
    target_loss: float
    """Uniform sampling's loss after 80% of the rounds, on its fitted curve."""
    initial_loss: float
    rows: tuple[Row, ...]
    ignores_seed: bool = False
    """Whether the federation of the next seed is the same, as with real data: then only draws differ."""
    versions: dict[str, str] = field(default_factory=versions)
    """Of the library, and of what it computes with."""

    def __repr__(self) -> str:
        from sortition.lab.reports.comparison import comparison_text

        return comparison_text(self)

    def _repr_html_(self) -> str:
        """For notebooks."""
        from sortition.lab.reports.comparison import comparison_html

        return comparison_html(self)

    def page(self) -> str:
        """Table and curves as a page of HTML that needs nothing else; it takes the extra ``reports``."""
        from sortition.lab.reports.comparison import comparison_page

        return comparison_page(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page if the name ends in ``.html``, all numbers if it ends in ``.json``."""
        file = Path(path)
        writers = {".html": self.page, ".json": self.json}
        suffix = file.suffix.lower()
        if suffix not in writers:
            raise ConfigurationError(
                f"path must end in .html (the page) or .json (all numbers), got {file.name!r}"
            )
        file.write_text(writers[suffix](), encoding="utf-8")

    def json(self) -> str:
        """All fields under their names; what is not finite, after a run diverged, is null."""
        return json.dumps(_plain(asdict(self)), indent=2, allow_nan=False) + "\n"


@named_keywords
def compare(
    problem: ProblemFactory,
    samplers: Sequence[str] | Mapping[str, Contestant] = DEFAULT_SAMPLERS,
    *,
    cohort_size: int,
    num_rounds: int,
    step_size: float,
    design: Design = "fixed_size",
    memory: bool = False,
    tune: bool = False,
    repeats: int = 5,
    seed: int = 0,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Comparison:
    r"""Train with every sampler on the same ``repeats`` federations, and with uniform sampling.

    Within a repeat all samplers have the same data, the same mini-batches and the same initial model.

    *Target loss.* Uniform sampling's loss after 80% of the rounds. It asks "how many rounds does this sampler
    need for what uniform sampling gives me?", and leaves slower samplers a quarter more rounds to get there.
    If the target is not below the loss of the initial model, the comparison is refused: it would say
    nothing.

    *Curves.* The first time that a noisy curve is below a target is a lucky dip. So the mean loss of the
    repeats is fitted by the falling curve that is nearest to it (least squares, isotonic regression), and
    that is compared with the target: a sampler compared with itself, with other draws, takes 0.95 to 1.01
    times the rounds.

    *Intervals.* The logarithm of the ratio is computed again without each of the repeats in turn, for all
    samplers alike (jackknife), and has a t interval of 95%. If that holds 1, the repeats show no difference.

    Parameters
    ----------
    problem
        Makes the federation of a repeat: ``problem(seed=...)``. A federation has ``num_clients``,
        ``client_weights``, ``initial_model()``, ``updates(model, clients, round_index)`` and ``loss(model)``
        (``sortition.lab.training.Problem``).
    samplers
        Names, out of ``sortition samplers`` or ``module:factory``; or factories by name.
    cohort_size
        K, the clients of a round.
    num_rounds
        Rounds of training.
    step_size
        Of the server's step along the aggregate. With ``tune``, where the search begins.
    design
        How cohorts are drawn.
    memory
        Whether the aggregate uses a memory of earlier updates.
    tune
        Choose the step size for each sampler, from 1/16 to 16 times ``step_size``, on two other federations:
        for uniform sampling the least loss after 80% of the rounds, for the others the fewest rounds to it.
        Less variance is worth most where it allows larger steps.
    repeats
        Federations to average over; repeat r has the seed ``seed + r``.
    jobs
        Processes to use; the result is the same. With more than one, a script must call ``compare`` below
        ``if __name__ == "__main__":``, since each process imports the script.
    progress
        Is called with the rounds done so far, out of ``rounds_of(...)``.
    """
    num_rounds = whole_number("num_rounds", num_rounds, least=2, most=MOST_REPEATED)
    repeats = whole_number("repeats", repeats, least=1, most=MOST_REPEATED)
    jobs = whole_number("jobs", jobs, least=1)
    seed = whole_number("seed", seed, least=0)
    whole_number("cohort_size", cohort_size, least=1)
    step_size = positive_number("step_size", step_size)
    chosen = samplers if isinstance(samplers, Mapping) else {name: find_contestant(name) for name in samplers}
    contestants = with_baseline(chosen or {BASELINE: CONTESTANTS[BASELINE]})
    federation = _check_seed(problem, seed)
    num_clients = federation.num_clients
    ignores_seed = repeats > 1 and _same(federation, make_problem(problem, seed + 1))
    if design in INCLUSION_DESIGNS:  # these draw each client at most once
        whole_number("cohort_size", cohort_size, least=1, most=num_clients)
    training = Training(problem, cohort_size, num_rounds, step_size, design, memory)

    steps = dict.fromkeys(contestants, step_size)
    tuning_rounds = 0
    if tune:
        tuning_seeds = range(seed + repeats, seed + repeats + TUNING_REPEATS)
        steps = _tuned(contestants, training, tuning_seeds, jobs, progress)
        tuning_rounds = rounds_of(len(contestants), num_rounds, 0, tune=True)

    def advance(rounds: int) -> None:
        if progress is not None:
            progress(tuning_rounds + rounds)

    seeds = range(seed, seed + repeats)
    wanted = [(name, steps[name], each) for name in contestants for each in seeds]
    trained = _train(contestants, training, wanted, jobs, advance)
    runs = {name: [trained[name, steps[name], each] for each in seeds] for name in contestants}
    losses = {name: np.stack([run.losses for run in of_sampler]) for name, of_sampler in runs.items()}
    uniform = FallingCurve(losses[BASELINE].mean(axis=0))
    target = uniform.at(TARGET_SHARE * num_rounds)
    initial_loss = float(np.mean([run.initial_loss for run in runs[BASELINE]]))
    if not target < initial_loss:
        found = f", tuned to {steps[BASELINE]:g}" if tune else ""
        raise ConfigurationError(
            f"step_size must lower the loss, got {step_size:g}{found}: uniform sampling has a loss of "
            f"{target:.4g} after {TARGET_SHARE:.0%} of {num_rounds} rounds, and the initial model has "
            f"{initial_loss:.4g}, so there is nothing to compare. Take more rounds or a smaller step"
            + (" to tune from" if tune else ", or tune, which gives each sampler a step of its own")
        )
    return Comparison(
        problem=_name(problem),
        num_clients=num_clients,
        cohort_size=cohort_size,
        num_rounds=num_rounds,
        repeats=repeats,
        design=design,
        memory=memory,
        tuned=tune,
        seed=seed,
        step_size=step_size,
        target_loss=target,
        initial_loss=initial_loss,
        rows=tuple(
            _row(name, steps[name], losses, np.stack([run.variance_ratios for run in runs[name]]), target)
            for name in contestants
        ),
        ignores_seed=ignores_seed,
    )


def rounds_of(num_samplers: int, num_rounds: int, repeats: int, *, tune: bool) -> int:
    """All rounds of a comparison of ``num_samplers``, uniform sampling among them: for a progress bar."""
    return num_samplers * num_rounds * (repeats + (len(FACTORS) * TUNING_REPEATS if tune else 0))


# Training ------------------------------------------------------------------------------------------------


def make_problem(problem: ProblemFactory, seed: int) -> Problem:
    """The federation of this seed, checked; an error of the factory, a user's, becomes one line."""
    if not callable(problem):
        raise ConfigurationError(f"problem must be a function or class that takes a seed, got {problem!r}")
    try:
        return check_problem(problem(seed=seed))
    except SortitionError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
            raise
        raise ConfigurationError(
            f"problem: {_name(problem)}(seed={seed}) or one of its methods raised {in_one_line(error)}"
        ) from error


def _check_seed(problem: ProblemFactory, seed: int) -> Problem:
    """The federation of this seed, which must be the same when it is made again."""
    first, again = make_problem(problem, seed), make_problem(problem, seed)
    if not _same(first, again):
        raise ConfigurationError(
            f"problem: {_name(problem)}(seed={seed}) must make the same federation when it is called again: "
            "what is random must depend on the seed, as in default_rng(seed)"
        )
    return first


def _same(one: Problem, other: Problem) -> bool:
    """Whether two federations are the same before the first round."""
    return all(map(_alike, _start(one), _start(other)))


def _start(problem: Problem) -> tuple[ArrayLike, ...]:
    """What is seen of a federation before the first round."""
    model = problem.initial_model()
    some = np.unique(np.linspace(0, problem.num_clients - 1, SOME).astype(int))
    return problem.client_weights, model, problem.updates(model, some, 0), problem.loss(model)


def _alike(one: ArrayLike, other: ArrayLike) -> bool:
    """Whether arrays are the same, but for rounding."""
    return np.shape(one) == np.shape(other) and np.allclose(one, other, equal_nan=True)


def _name(problem: object) -> str:
    function = problem.func if isinstance(problem, partial) else problem
    return getattr(function, "__name__", type(function).__name__)


def _train(
    contestants: Mapping[str, Contestant],
    training: Training,
    wanted: Sequence[tuple[str, float, int]],
    jobs: int,
    progress: Progress | None,
) -> dict[tuple[str, float, int], Trajectory]:
    """A run for each sampler, step size and seed that is wanted."""
    tasks = [
        partial(
            train_one, name, contestants[name], "of the comparison", replace(training, step_size=step), seed
        )
        for name, step, seed in wanted
    ]
    return dict(zip(wanted, run_tasks(tasks, jobs, progress), strict=True))


def _tuned(
    contestants: Mapping[str, Contestant],
    training: Training,
    seeds: Sequence[int],
    jobs: int,
    progress: Progress | None,
) -> dict[str, float]:
    """The step size of each sampler: the least loss for uniform sampling, the fewest rounds to it else."""
    steps = [factor * training.step_size for factor in FACTORS]
    wanted = [(name, step, seed) for name in contestants for step in steps for seed in seeds]
    trained = _train(contestants, training, wanted, jobs, progress)
    curves = {
        (name, step): FallingCurve(np.mean([trained[name, step, each].losses for each in seeds], axis=0))
        for name in contestants
        for step in steps
    }
    place = TARGET_SHARE * training.num_rounds
    best = min(steps, key=lambda step: curves[BASELINE, step].at(place))
    target = curves[BASELINE, best].at(place)

    def cost(name: str, step: float) -> tuple[float, float]:
        curve = curves[name, step]
        return curve.rounds_to(target) or math.inf, curve.at(training.num_rounds)

    return {name: best if name == BASELINE else min(steps, key=partial(cost, name)) for name in contestants}


# Judging -------------------------------------------------------------------------------------------------


class FallingCurve:
    """The falling curve that is nearest to ``losses``, one a round: isotonic regression.

    It consists of stretches of equal values. Between the middles of two stretches it is a straight line.

    >>> curve = FallingCurve(np.array([4.0, 2.0, 3.0, 0.0]))
    >>> curve.at(1), curve.at(2.5), curve.rounds_to(2.5), curve.rounds_to(-1.0)
    (4.0, 2.5, 2.5, None)
    """

    def __init__(self, losses: FloatArray) -> None:
        from scipy.optimize import isotonic_regression

        self._middles, self._values = np.array([float(len(losses))]), np.array([np.inf])  # it diverged
        if np.isfinite(losses).all():
            fitted = isotonic_regression(losses, increasing=False)
            starts, ends = fitted.blocks[:-1], fitted.blocks[1:]
            self._middles, self._values = (starts + ends + 1) / 2, fitted.x[starts]

    def at(self, rounds: float) -> float:
        """The loss after so many rounds."""
        return float(np.interp(rounds, self._middles, self._values))

    def rounds_to(self, target: float) -> float | None:
        """The rounds until the loss is down to ``target``; None if it never is."""
        if not self._values[-1] <= target:
            return None
        return float(np.interp(-target, -self._values, self._middles))


def _row(
    name: str, step_size: float, losses: Mapping[str, FloatArray], ratios: FloatArray, target: float
) -> Row:
    own = losses[name]
    rounds = FallingCurve(own.mean(axis=0)).rounds_to(target)
    ratio = _log_ratio(own, losses[BASELINE])
    last = own[:, -max(1, round(LAST_SHARE * own.shape[1])) :].mean(axis=1)
    with np.errstate(invalid="ignore"):  # runs that diverged
        return Row(
            name=name,
            step_size=step_size,
            rounds_to_target=rounds,
            rounds_ratio=None if ratio is None else math.exp(ratio),
            interval=None if ratio is None else _interval(ratio, own, losses[BASELINE]),
            final_loss=float(last.mean()),
            final_loss_spread=float(last.std()),
            mean_variance_ratio=float(ratios.mean()),
            losses=np.asarray(own.mean(axis=0)),
            losses_spread=np.asarray(own.std(axis=0)),
            variance_ratios=np.asarray(ratios.mean(axis=0)),
            losses_of_repeats=own,
        )


def _log_ratio(own: FloatArray, uniform: FloatArray) -> float | None:
    """The logarithm of the ratio of rounds; ``own`` and ``uniform`` have a row a repeat."""
    baseline = FallingCurve(uniform.mean(axis=0))
    place = TARGET_SHARE * uniform.shape[1]
    rounds = FallingCurve(own.mean(axis=0)).rounds_to(baseline.at(place))
    return None if rounds is None else math.log(rounds / (baseline.rounds_to(baseline.at(place)) or place))


def _interval(ratio: float, own: FloatArray, uniform: FloatArray) -> tuple[float, float] | None:
    """The interval by leaving out one repeat at a time; None with one repeat, or if one of these fails."""
    repeats = len(own)
    if repeats < 2:
        return None
    without = [_log_ratio(np.delete(own, i, axis=0), np.delete(uniform, i, axis=0)) for i in range(repeats)]
    return jackknife_interval(ratio, without)


def jackknife_interval(log_ratio: float, without: Sequence[float | None]) -> tuple[float, float] | None:
    """The 95% interval of a ratio, from its logarithm without each repeat in turn.

    None with one repeat, or if one of them is not known.

    >>> low, high = jackknife_interval(0.0, [-0.01, 0.0, 0.01])
    >>> round(low, 3), round(high, 3)
    (0.952, 1.051)
    """
    repeats = len(without)
    known = np.array([each for each in without if each is not None])
    if repeats < 2 or len(known) < repeats:
        return None
    from scipy.special import stdtrit

    error = math.sqrt((repeats - 1) / repeats * float(np.sum((known - known.mean()) ** 2)))
    half = float(stdtrit(repeats - 1, 0.5 + CONFIDENCE / 2)) * error
    return math.exp(log_ratio - half), math.exp(log_ratio + half)


def _plain(value: Any) -> Any:
    """Arrays as lists; numbers that JSON does not have as None."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
