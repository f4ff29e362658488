r"""Real federations: every method with step sizes tuned alike, and what each needs to a target held-out loss.

A *cell* is a federation, a model, an algorithm, the share of clients in a round, the weights of the clients
and who is online. In each cell every *method* (who is drawn, and how updates are combined) has its client and
server step size tuned by a search of the same number of runs, on seeds of their own, and is then run on the
report seeds. A seed decides the initial model, the mini-batches and the draws; the data are what they are.

*Target.* The held-out loss that size-proportional FedAvg ("size") has after 80% of the rounds, on the falling
curve that is nearest to the mean of its seeds. It is tuned for the least loss there, all others for the
fewest rounds to it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from sortition import EmpiricalBayesSampler, Memory, ProportionalSampler, UniformSampler
from sortition.core.designs import Design
from sortition.core.errors import ConfigurationError, DataError
from sortition.core.types import FloatArray, IntArray
from sortition.lab.algorithms import FedAdam, FedAvg, Scaffold
from sortition.lab.arena.environments import LocalUpdates
from sortition.lab.arena.tournament import TARGET_SHARE
from sortition.lab.client_memory import UpdateMemory
from sortition.lab.compare import FallingCurve
from sortition.lab.contestants import Trial
from sortition.lab.federations.data import FEDERATIONS, federation
from sortition.lab.federations.packaged import INSTALL
from sortition.lab.parallel import Progress, Tick, run_tasks
from sortition.lab.reproduce.finished import origin, write_whole
from sortition.lab.rivals.clustered import ClusteredBySimilaritySampler
from sortition.lab.rivals.field import RIVALS, Contender
from sortition.lab.training import Algorithm, training_rounds

AlgorithmName: TypeAlias = Literal["fedavg", "fedadam", "scaffold"]
Online: TypeAlias = Literal["all", "hours"]
Role: TypeAlias = Literal["ours", "ablation", "unbiased", "biased", "reference"]

BASE, RECOMMENDED, FULL_PARTICIPATION = "size", "default-memory", "full"
CONTROL, SIMILARITY = "size-our-steps", "clustered-similarity"
FIRST_REPORT_SEED, FIRST_TUNING_SEED = 1, 1001
ONLINE_HOURS = 4
"""A client is online for so many hours before and after its own."""
HOPELESS = 3.0
"""Training whose held-out loss is this many times the initial one has diverged."""
WORST = 0.1
"""The share of the clients whose mean loss is called the worst."""
FACTOR = 2.0
"""Neighbouring step sizes of the search."""
DIAGNOSIS_ROUNDS = {"table": 60, "text": 20, "image": 30}


# Methods -------------------------------------------------------------------------------------------------


class Method(NamedTuple):
    """Who is drawn, and how updates are combined."""

    about: str
    role: Role
    make: Callable[[Trial, int], Contender]
    """From a trial and the number of parameters, for one run."""
    downloads: float = 1.0
    """Models sent to clients, over trainings."""


def _ours(kind: Any, design: Design, memory: bool) -> Callable[[Trial, int], Contender]:
    def make(trial: Trial, num_parameters: int) -> Contender:
        sampler = kind(**replace(trial, design=design).common())
        kept = Memory(num_parameters=num_parameters, num_clients=len(trial.client_weights))
        return Contender(sampler, kept if memory else None)

    return make


def _everybody(trial: Trial, num_parameters: int) -> Contender:
    everyone = replace(trial, cohort_size=len(trial.client_weights), design="fixed_size")
    return Contender(UniformSampler(**everyone.common()))


def _similarity(trial: Trial, num_parameters: int) -> Contender:
    """Clustered sampling by similarity whose tree is made anew every 20 rounds: it takes M^2 operations."""
    common = {name: value for name, value in trial.common().items() if name != "design"}
    sampler = ClusteredBySimilaritySampler(**common, num_parameters=num_parameters, recluster_every=20)
    return Contender(sampler, sampler)


METHODS: dict[str, Method] = {
    BASE: Method(
        "by data size, with replacement", "reference", _ours(ProportionalSampler, "with_replacement", False)
    ),
    CONTROL: Method(
        "the reference, at the step sizes that were tuned for the recommended setting",
        "reference",
        _ours(ProportionalSampler, "with_replacement", False),
    ),
    FULL_PARTICIPATION: Method("everybody, every round", "reference", _everybody),
    RECOMMENDED: Method(
        "default sampler, fixed size, memory: recommended",
        "ours",
        _ours(EmpiricalBayesSampler, "fixed_size", True),
    ),
    "default": Method(
        "default sampler, fixed size", "ours", _ours(EmpiricalBayesSampler, "fixed_size", False)
    ),
    "size-memory": Method(
        "by data size, fixed size, memory", "ablation", _ours(ProportionalSampler, "fixed_size", True)
    ),
    "size-fixed": Method(
        "by data size, fixed size", "ablation", _ours(ProportionalSampler, "fixed_size", False)
    ),
    **{
        name: Method(
            rival.paper,
            "unbiased" if rival.unbiased else "biased",
            _similarity if name == SIMILARITY else rival.make,
            2.0 if name == "power-of-choice" else 1.0,
        )
        for name, rival in RIVALS.items()
        if rival.needs != "all norms"
    },
}
"""By name. AOCS is left out: all clients train before any is drawn, so no training is saved."""
FEW = (BASE, RECOMMENDED, "clustered-size", "fedvarp", "uniform-subset")
MANY = (*FEW, "default", "size-memory", "size-fixed", "mifa", "fedau", "power-of-choice", "oort")
OF_BASE_CELLS = {
    "table": (*MANY, FULL_PARTICIPATION, CONTROL),
    "image": (*MANY, CONTROL),
    "text": (*FEW, CONTROL),
}
"""Fewer where a round is expensive."""
BY_SIMILARITY = ("lecturers", "fashion")
"""Where clustering by similarity is affordable: few clients."""


# Cells ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """How a federation is trained; the step sizes are where the search begins."""

    num_rounds: int
    local_steps: int
    batch_size: int
    steps: dict[str, tuple[float, float]]
    """Client and server step size, by algorithm; those of the two-layer network under its own name."""

    def start(self, cell: Cell) -> tuple[float, float]:
        """Where the search begins in this cell."""
        return self.steps[cell.model if cell.model in self.steps else cell.algorithm]


TABLE_STEPS: dict[str, tuple[float, float]] = {
    "fedavg": (0.1, 4.0),
    "two-layer": (0.025, 8.0),
    "fedadam": (0.1, 0.03),
    "scaffold": (0.1, 2.0),
}
SETUPS: dict[str, Setup] = {
    "lecturers": Setup(150, 5, 10, TABLE_STEPS),
    "chem97": Setup(150, 5, 10, TABLE_STEPS),
    "students": Setup(150, 5, 10, TABLE_STEPS),
    "flights": Setup(120, 5, 10, TABLE_STEPS),
    "fashion": Setup(100, 5, 10, {"fedavg": (0.3, 1.0)}),
    "shakespeare": Setup(60, 3, 4, {"fedavg": (3.0, 1.0)}),
    "chitchat": Setup(60, 3, 4, {"fedavg": (3.0, 1.0)}),
}


@dataclass(frozen=True)
class Cell:
    """What is trained, and under which conditions."""

    federation: str
    model: str
    algorithm: AlgorithmName = "fedavg"
    share: float = 0.05
    """K / M."""
    weighting: Literal["sizes", "equal"] = "sizes"
    online: Online = "all"

    @property
    def name(self) -> str:
        """For tables.

        >>> Cell("flights", "softmax", weighting="equal").name
        'flights, softmax, fedavg, K/M 5%, 1/M'
        """
        weights = "n/N" if self.weighting == "sizes" else "1/M"
        hours = "" if self.online == "all" else ", by hour"
        return f"{self.federation}, {self.model}, {self.algorithm}, K/M {self.share:.0%}, {weights}{hours}"

    @property
    def condition(self) -> str:
        """In what it differs from the base cell of its federation.

        >>> Cell("flights", "softmax", share=0.2).condition, Cell("flights", "softmax").condition
        ('K/M 20%', 'base')
        """
        base = cells_of(self.federation)[0]
        said = {
            "model": self.model,
            "algorithm": self.algorithm,
            "share": f"K/M {self.share:.0%}",
            "weighting": "weights 1/M",
            "online": "by hour",
        }
        return (
            ", ".join(text for key, text in said.items() if getattr(self, key) != getattr(base, key))
            or "base"
        )


@dataclass(frozen=True)
class Effort:
    """How much work goes into a method in a cell."""

    num_rounds: int
    evaluations: int
    tuning_runs: int
    """Pairs of step sizes that are tried."""
    tuning_seeds: int
    report_seeds: int
    probed_seeds: int
    """Report seeds on which the error of the aggregate is measured, in two rounds."""

    @property
    def every(self) -> int:
        """Rounds between evaluations."""
        return max(1, self.num_rounds // self.evaluations)

    @property
    def evaluations_made(self) -> int:
        """Points of a curve."""
        return self.num_rounds // self.every

    @property
    def rounds(self) -> int:
        """At most so many in all."""
        return self.num_rounds * (self.tuning_runs * self.tuning_seeds + self.report_seeds)


@dataclass(frozen=True)
class Task:
    """A method in a cell, with an effort."""

    cell: Cell
    method: str
    effort: Effort

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.cell.name}, {self.method}"

    def settings(self) -> dict[str, Any]:
        """All that decides the result, the target of the tuning apart."""
        setup = SETUPS[self.cell.federation]
        return {
            **asdict(self),
            "local_steps": setup.local_steps,
            "batch_size": setup.batch_size,
            "start": setup.start(self.cell),
        }

    def file(self, directory: Path) -> Path:
        """Where the result is kept."""
        key = hashlib.sha256(json.dumps(self.settings(), sort_keys=True).encode()).hexdigest()[:12]
        return directory / "runs" / f"{self.cell.federation}-{self.method}-{key}.json"


def cells_of(name: str) -> list[Cell]:
    """The cells of a federation, the base first; then one factor is varied at a time.

    All factors would take weeks. Each is varied where rounds are cheap, and on two federations or more.
    """
    models = {"table": "softmax", "text": "gru", "image": "cnn"}
    base = Cell(name, models[FEDERATIONS[name].kind])
    rare, often = replace(base, share=0.01), replace(base, share=0.2)
    equal, hours = replace(base, weighting="equal"), replace(base, online="hours")
    adam, scaffold = replace(base, algorithm="fedadam"), replace(base, algorithm="scaffold")
    deep = replace(base, model="two-layer")
    varied: dict[str, list[Cell]] = {
        "lecturers": [often, equal, rare, hours, adam, scaffold, deep],
        "chem97": [often, equal, rare, adam, scaffold],
        "students": [equal, hours, deep],
        "flights": [equal, hours],
        "fashion": [equal],
    }
    return [base, *varied.get(name, [])]


def tasks_of(names: Sequence[str], *, quick: bool = False, seeds: int | None = None) -> list[Task]:
    """Every task, those of the base cells first.

    The base cells have the most methods. Where a round is expensive (texts, images) there are fewer methods
    and fewer runs.
    """
    by_federation = {name: cells_of(name) for name in names}
    if quick:
        by_federation = {name: cells[:1] for name, cells in by_federation.items()}
    most = max(map(len, by_federation.values()))
    cells = [each[place] for place in range(most) for each in by_federation.values() if place < len(each)]
    return [
        Task(cell, method, effort_of(cell, method, quick=quick, seeds=seeds))
        for cell in cells
        for method in methods_of(cell, quick=quick)
    ]


def methods_of(cell: Cell, *, quick: bool = False) -> list[str]:
    """The methods of a cell, the reference first."""
    if quick:
        return [BASE, RECOMMENDED, "clustered-size", "fedvarp", CONTROL]
    if cell.algorithm == "scaffold":  # it has a memory of its own, and no place for another one
        return [BASE, "default", "clustered-size", "uniform-subset", CONTROL]
    if cell != cells_of(cell.federation)[0]:
        return [*FEW, CONTROL]
    similarity = [SIMILARITY] if cell.federation in BY_SIMILARITY else []
    return [*OF_BASE_CELLS[FEDERATIONS[cell.federation].kind], *similarity]


def effort_of(cell: Cell, method: str, *, quick: bool = False, seeds: int | None = None) -> Effort:
    """What fits into two hours on two cores in all, or into three minutes if it must be quick."""
    setup, kind = SETUPS[cell.federation], FEDERATIONS[cell.federation].kind
    if method == CONTROL:
        return replace(effort_of(cell, BASE, quick=quick, seeds=seeds), tuning_runs=0)
    if quick:
        return Effort(setup.num_rounds // (2 if kind == "table" else 5), 10, 2, 1, seeds or 2, 1)
    # one tuning seed chooses steps at which other seeds diverge
    if method == FULL_PARTICIPATION:
        return Effort(setup.num_rounds, 30, 4, 2, seeds or 2, 0)
    if kind == "table":
        return Effort(setup.num_rounds, 30, 8, 2, seeds or 10, 5)
    if kind == "image":
        return Effort(setup.num_rounds, 20, 5, 2, seeds or 10, 3)
    return Effort(setup.num_rounds, 20, 4, 2, seeds or 10, 0)


# One run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One seed: curves at the evaluations, and what it cost."""

    losses: list[float]
    """Held-out loss; inf from the evaluation on at which it has diverged."""
    worst: list[float]
    """Mean held-out loss of the worst tenth of the clients."""
    trainings: float
    """Clients that trained, a round."""
    errors: list[float]
    """Squared error of the aggregate, in units of the least variance of draws with replacement."""


def online_at(hours: IntArray, round_index: int) -> IntArray:
    """The clients that are online in the hour of this round; the hours of the clients are spread by rank.

    >>> online_at(np.array([3, 1, 2]), 0)
    array([1])
    """
    own = np.argsort(np.argsort(hours, kind="stable"), kind="stable") * 24 // len(hours)
    apart = np.abs(own - round_index % 24)
    return np.flatnonzero(np.minimum(apart, 24 - apart) <= ONLINE_HOURS)


def run_once(
    task: Task,
    steps: tuple[float, float],
    seed: int,
    *,
    probed: bool = False,
    tick: Tick = lambda: None,
) -> Run:
    """Train with these step sizes on this seed."""
    from sortition.lab.federations.federated_model import FederatedModel

    cell, effort, setup = task.cell, task.effort, SETUPS[task.cell.federation]
    problem = FederatedModel(
        federation(cell.federation),
        model=cell.model,
        weighting=cell.weighting,
        batch_size=setup.batch_size,
        seed=seed,
    )
    cohort_size = max(1, round(cell.share * problem.num_clients))
    trial = Trial(problem.client_weights, cohort_size, effort.num_rounds, 1.0, "fixed_size", seed)
    sampler, memory = METHODS[task.method].make(trial, problem.initial_model().size)
    algorithm = _algorithm(cell, setup, steps, memory)
    measurable = cell.algorithm == "fedavg" and cell.online == "all"
    probes = (effort.num_rounds // 2, effort.num_rounds - 1) if probed and measurable else ()
    available = None if cell.online == "all" else partial(online_at, problem.federation.hours)
    losses: list[float] = []
    worst: list[float] = []
    errors: list[float] = []
    trained, most = 0, HOPELESS * problem.loss(problem.initial_model())
    before = problem.initial_model()
    with np.errstate(over="ignore", invalid="ignore"):
        for done in training_rounds(
            sampler, problem, algorithm, effort.num_rounds, measure_every=0, available=available
        ):
            trained += len(done.cohort.clients)
            if done.index in probes:
                step = (before - done.state) / steps[1]
                errors.append(aggregate_error(step, algorithm, before, problem, done.index, cohort_size))
            if done.index + 1 in probes:
                before = done.state
            tick()
            if (done.index + 1) % effort.every:
                continue
            each = problem.held_out_losses(getattr(done.state, "model", done.state))
            losses.append(problem.mean_loss(each))
            worst.append(worst_of(each))
            if not losses[-1] <= most:
                break
    missing = effort.num_rounds // effort.every - len(losses)
    if missing or not losses[-1] <= most:
        for _ in range(effort.num_rounds - (done.index + 1)):
            tick()
        losses[-1] = worst[-1] = math.inf
    return Run(
        losses + missing * [math.inf], worst + missing * [math.inf], trained / (done.index + 1), errors
    )


def _algorithm(
    cell: Cell, setup: Setup, steps: tuple[float, float], memory: UpdateMemory | None
) -> Algorithm:
    client, server = steps
    if cell.algorithm == "scaffold":
        return Scaffold(client, setup.local_steps, server)
    return (FedAdam if cell.algorithm == "fedadam" else FedAvg)(client, setup.local_steps, server, memory)


def worst_of(client_losses: FloatArray) -> float:
    """The mean loss of the worst tenth of the clients that have held-out data."""
    known = np.sort(client_losses[~np.isnan(client_losses)])
    return float(known[-max(1, round(WORST * len(known))) :].mean())


def aggregate_error(
    step: FloatArray, algorithm: Any, model: FloatArray, problem: Any, round_index: int, cohort_size: int
) -> float:
    r""":math:`\|g - \sum_m \lambda_m g_m\|^2 / V^\star` of a round's aggregate g.

    :math:`V^\star = \frac1K ((\sum_m \lambda_m \|g_m\|)^2 - \|\sum_m \lambda_m g_m\|^2)` is the least
    variance of K draws with replacement.
    """
    weights = problem.client_weights
    updates = algorithm.updates(model, np.arange(problem.num_clients), problem, round_index)
    truth = weights @ updates
    roots = float(weights @ np.linalg.norm(updates, axis=1))
    least = (roots**2 - float(truth @ truth)) / cohort_size
    return float((step - truth) @ (step - truth)) / least


# One task ------------------------------------------------------------------------------------------------


def run_task(
    task: Task, target: float | None, steps: tuple[float, float] | None, tick: Tick = lambda: None
) -> dict[str, Any]:
    """Tune and run a method; ``target`` is the loss to tune for, None for the reference, which sets it.

    With ``steps`` nothing is tuned.
    """
    with one_thread():
        return _tuned_and_run(task, target, steps, tick)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread, whatever the number of processes.

    More would wait for each other, since a round is many small products, and would round sums differently.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _tuned_and_run(
    task: Task, target: float | None, steps: tuple[float, float] | None, tick: Tick
) -> dict[str, Any]:
    effort, setup = task.effort, SETUPS[task.cell.federation]
    tuning = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + effort.tuning_seeds)
    tried: dict[tuple[float, float], FallingCurve] = {}
    place = TARGET_SHARE * effort.evaluations_made

    def cost(pair: tuple[float, float]) -> tuple[float, float]:
        runs = [run_once(task, pair, seed, tick=tick) for seed in tuning]
        curve = tried[pair] = FallingCurve(np.mean([run.losses for run in runs], axis=0))
        rounds = 0.0 if target is None else curve.rounds_to(target) or math.inf
        return rounds, curve.at(place if target is None else effort.evaluations_made)

    best = steps or search(cost, setup.start(task.cell), effort.tuning_runs)
    for _ in range((effort.tuning_runs - len(tried)) * effort.tuning_seeds * effort.num_rounds):
        tick()
    runs = [
        run_once(task, best, FIRST_REPORT_SEED + number, probed=number < effort.probed_seeds, tick=tick)
        for number in range(effort.report_seeds)
    ]
    return {
        "settings": task.settings(),
        "target": target,
        "tuned_target": tried[best].at(place) if tried else None,
        "steps": best,
        "tried": len(tried),
        "runs": [asdict(run) for run in runs],
    }


def search(
    cost: Callable[[tuple[float, float]], tuple[float, float]], start: tuple[float, float], most: int
) -> tuple[float, float]:
    """The best of at most ``most`` pairs of step sizes: from the best so far to its neighbours, one by one.

    >>> search(lambda pair: (abs(pair[0] - 4.0) + abs(pair[1] - 1.0), 0.0), (1.0, 1.0), most=8)
    (4.0, 1.0)
    """
    costs = {start: cost(start)}
    best = start
    moves = [(1.0, FACTOR), (1.0, 1 / FACTOR), (FACTOR, 1.0), (1 / FACTOR, 1.0)]
    while len(costs) < most:
        fresh = [
            (move, (best[0] * move[0], best[1] * move[1]))
            for move in moves
            if (best[0] * move[0], best[1] * move[1]) not in costs
        ]
        if not fresh:
            break
        move, pair = fresh[0]
        costs[pair] = cost(pair)
        if costs[pair] < costs[best]:
            best = pair
            moves.remove(move)  # go on this way first
            moves.insert(0, move)
    return best


# All tasks -----------------------------------------------------------------------------------------------


def finished(task: Task, directory: Path) -> dict[str, Any] | None:
    """The result of a task that was run before; None if it was not. Damaged files are refused."""
    path = task.file(directory)
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        same = found["settings"] == json.loads(json.dumps(task.settings())) and len(found["runs"]) > 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} should hold a finished task but is damaged ({error}); delete it") from None
    if not same:
        raise DataError(f"{path} holds another task than its name says; delete it")
    return found


def run_real(
    tasks: Sequence[Task],
    directory: Path,
    *,
    jobs: int = 1,
    ray: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Run what is not in ``directory`` yet: the references, all other methods and diagnoses, the controls.

    ``ray`` is the address of a Ray cluster, or "local"; otherwise ``jobs`` processes are used. ``progress``
    is called with the rounds done so far, out of ``rounds_left``.
    """
    if not tasks:
        raise ConfigurationError("federations must name at least one, got none")
    references = [task for task in tasks if task.method == BASE]
    others = [task for task in tasks if task.method not in (BASE, CONTROL)]
    made_by, done = origin(), 0
    for wave in (references, others, [task for task in tasks if task.method == CONTROL]):
        left = [task for task in wave if finished(task, directory) is None]
        work = [
            partial(
                run_task, task, _target_for(task, references, directory), _steps_for(task, others, directory)
            )
            for task in left
        ]
        saves = [partial(_keep_task, task, directory, made_by) for task in left]
        names = [task.name for task in left]
        if wave is others:
            for task in _base_tasks(references):
                if not _diagnosis_file(task, directory).is_file():
                    found = finished(task, directory)
                    assert found is not None
                    work.append(partial(diagnosed, task, tuple(found["steps"])))
                    saves.append(partial(_keep_diagnosis, task, directory))
                    names.append(f"{task.cell.federation}, diagnosis")
        if not work:
            continue
        if ray is None:
            kept = [partial(_call_and_keep, call, save) for call, save in zip(work, saves, strict=True)]
            run_tasks(kept, jobs, partial(_shifted, progress, done), names)
            done += sum(task.effort.rounds for task in left)
            continue
        from sortition.lab.arena.ray_tasks import run_on_ray

        for place, result in run_on_ray(work, ray, names):
            saves[place](result)
            done += left[place].effort.rounds if place < len(left) else 0
            _shifted(progress, done, 0)


def rounds_left(tasks: Sequence[Task], directory: Path) -> int:
    """The rounds of the tasks that are not finished."""
    return sum(task.effort.rounds for task in tasks if finished(task, directory) is None)


def origins_of(tasks: Sequence[Task], directory: Path) -> list[dict[str, Any]]:
    """The code that made the finished ones, without repetition."""
    found: list[dict[str, Any]] = []
    for task in tasks:
        result = finished(task, directory)
        if result is not None and result["origin"] not in found:
            found.append(result["origin"])
    return found


def _call_and_keep(call: Callable[[Tick], Any], save: Callable[[Any], None], tick: Tick) -> None:
    save(call(tick))


def _keep_task(task: Task, directory: Path, made_by: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    write_whole(task.file(directory), json.dumps({**result, "origin": made_by}).encode())


def _shifted(progress: Progress | None, offset: int, rounds: int) -> None:
    if progress is not None:
        progress(offset + rounds)


def _target_for(task: Task, references: Sequence[Task], directory: Path) -> float | None:
    """The loss that the reference of the task's cell reached on the tuning seeds; None for itself."""
    if task.method == BASE:
        return None
    reference = next(each for each in references if each.cell == task.cell)
    found = finished(reference, directory)
    assert found is not None
    return float(found["tuned_target"])


def _steps_for(task: Task, others: Sequence[Task], directory: Path) -> tuple[float, float] | None:
    """The step sizes of a control: those of the recommended setting, or of what stands for it."""
    if task.method != CONTROL:
        return None
    here = {each.method: each for each in others if each.cell == task.cell}
    found = finished(here[recommended_among(here)], directory)
    assert found is not None
    client, server = found["steps"]
    return client, server


def recommended_among(methods: Collection[str]) -> str:
    """The recommended setting; without a memory where the algorithm has one of its own."""
    return RECOMMENDED if RECOMMENDED in methods else "default"


# The diagnosis of a federation ---------------------------------------------------------------------------


def _base_tasks(references: Sequence[Task]) -> list[Task]:
    """The references of the base cells."""
    return [task for task in references if task.cell == cells_of(task.cell.federation)[0]]


def _diagnosis_file(task: Task, directory: Path) -> Path:
    return directory / "runs" / f"{task.cell.federation}-diagnosis-{task.effort.num_rounds}.json"


def diagnosed(task: Task, steps: tuple[float, float], tick: Tick = lambda: None) -> dict[str, Any]:
    """What ``sortition diagnose`` says of a base cell, at the tuned steps of the reference."""
    from sortition.lab.diagnosis.diagnose import diagnose
    from sortition.lab.federations.federated_model import FederatedModel

    setup, kind = SETUPS[task.cell.federation], FEDERATIONS[task.cell.federation].kind
    problem = FederatedModel(
        federation(task.cell.federation),
        model=task.cell.model,
        batch_size=setup.batch_size,
        seed=FIRST_TUNING_SEED,
    )
    with one_thread():
        told = diagnose(
            LocalUpdates(problem, setup.local_steps, steps[0]),
            cohort_size=max(1, round(task.cell.share * problem.num_clients)),
            step_size=setup.local_steps * steps[0] * steps[1],
            num_rounds=min(task.effort.num_rounds // 2, DIAGNOSIS_ROUNDS[kind]),
            pilots=False,  # the table beside it is what they would tell
        )
    return {"sentence": told.sentence, "verdict": told.verdict, "columns": told.columns, "rows": told.cells()}


def _keep_diagnosis(task: Task, directory: Path, told: Mapping[str, Any]) -> None:
    write_whole(_diagnosis_file(task, directory), json.dumps(told).encode())


def diagnoses(tasks: Sequence[Task], directory: Path) -> dict[str, dict[str, Any]]:
    """Those that are finished, by federation."""
    found = {}
    for task in _base_tasks([task for task in tasks if task.method == BASE]):
        path = _diagnosis_file(task, directory)
        if path.is_file():
            found[task.cell.federation] = json.loads(path.read_text(encoding="utf-8"))
    return found


def installed_federations(names: Sequence[str] | None) -> tuple[list[str], dict[str, str]]:
    """The federations whose data are there, and for each other one the reason.

    With ``names`` all of these must be there: what is missing is an error before the work.
    """
    found, missing = [], {}
    for name in names or FEDERATIONS:
        try:
            federation(name)
        except DataError as error:
            if names is not None:
                raise
            missing[name] = str(error)
            continue
        found.append(name)
    if not found:
        raise DataError(f"no federation has its data installed: {INSTALL}")
    return found, missing
