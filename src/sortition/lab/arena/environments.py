"""The environments: half of them to choose by, half to report on, both halves of the same kinds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sortition.core.errors import ConfigurationError
from sortition.lab.arena import federations, synthetic
from sortition.lab.arena.synthetic import Synthetic
from sortition.lab.arena.trace import Environment, Split, Training


def _least_squares(spread: float) -> Training:
    problem = partial(federations.paper_least_squares, spread=spread)
    return Training(problem, cohort_size=5, num_rounds=1000, step_size=0.1)


def _one_coordinate(spread: float) -> Training:
    problem = partial(federations.paper_one_coordinate, spread=spread)
    return Training(problem, cohort_size=5, num_rounds=500, step_size=0.5)


def _many_least_squares(clients: int, spread: float, rounds: int, cohort: int) -> Training:
    problem = partial(federations.many_least_squares, spread=spread, num_clients=clients)
    return Training(problem, cohort_size=cohort, num_rounds=rounds, step_size=0.1)


def _digits(clients: int, cohort: int) -> Training:
    return Training(partial(federations.digits, num_clients=clients), cohort, num_rounds=500, step_size=0.3)


def _label_skewed(concentration: float, tail: float) -> Training:
    problem = partial(federations.label_skewed, concentration=concentration, tail=tail)
    return Training(problem, cohort_size=5, num_rounds=500, step_size=0.3)


ALL: tuple[Environment, ...] = (
    # Training runs -------------------------------------------------------------------------------------
    Environment("ls-sigma-1", "tune", "the paper's least squares, sigma = 1", _least_squares(1.0)),
    Environment("ls-sigma-3", "report", "the paper's least squares, sigma = 3", _least_squares(3.0)),
    Environment("ls-sigma-10", "tune", "the paper's least squares, sigma = 10", _least_squares(10.0)),
    Environment(
        "ls-2000-clients",
        "report",
        "least squares, sigma = 2, 2,000 clients, 20 drawn in each of only 200 rounds",
        _many_least_squares(2000, 2.0, rounds=200, cohort=20),
    ),
    Environment(
        "ls-1000-clients",
        "tune",
        "least squares, sigma = 1, 1,000 clients, 10 drawn in each of only 200 rounds",
        _many_least_squares(1000, 1.0, rounds=200, cohort=10),
    ),
    Environment("coordinate-nu-1", "report", "one coordinate a client, nu = 1", _one_coordinate(1.0)),
    Environment("coordinate-nu-3", "tune", "one coordinate a client, nu = 3", _one_coordinate(3.0)),
    Environment("coordinate-nu-5", "report", "one coordinate a client, nu = 5", _one_coordinate(5.0)),
    Environment("coordinate-nu-10", "report", "one coordinate a client, nu = 10", _one_coordinate(10.0)),
    Environment("coordinate-nu-20", "tune", "one coordinate a client, nu = 20", _one_coordinate(20.0)),
    Environment("digits-100", "tune", "images, 100 clients of skewed sizes", _digits(100, 5)),
    Environment("digits-500", "report", "images, 500 clients of skewed sizes", _digits(500, 10)),
    Environment(
        "softmax-pareto",
        "report",
        "softmax regression, a label or two a client, Pareto sizes",
        _label_skewed(0.1, tail=1.2),
    ),
    Environment(
        "softmax-mild",
        "tune",
        "softmax regression, some labels a client, sizes of a lighter tail",
        _label_skewed(1.0, tail=2.5),
    ),
    Environment(
        "fedavg-ls",
        "report",
        "FedAvg, 5 local steps on least squares, sigma = 1",
        Training(
            partial(federations.fedavg_least_squares, steps=5, step_size=0.01),
            cohort_size=5,
            num_rounds=500,
            step_size=0.05,
        ),
    ),
    Environment(
        "fedavg-softmax",
        "tune",
        "FedAvg, 10 local steps on label-skewed softmax regression, Pareto sizes",
        Training(
            partial(federations.fedavg_label_skewed, steps=10, step_size=0.05),
            cohort_size=5,
            num_rounds=500,
            step_size=0.5,
        ),
    ),
    # Generated norms -----------------------------------------------------------------------------------
    Environment("steady", "tune", "levels that stay, little noise", Synthetic(noise=0.2)),
    Environment(
        "steady-pareto",
        "report",
        "levels that stay, little noise, Pareto sizes",
        Synthetic(noise=0.2, sizes=synthetic.pareto),
    ),
    Environment(
        "drift-walk",
        "tune",
        "slow drift: each level wanders by a factor e over the run",
        Synthetic(shape=synthetic.RandomWalk(1.0)),
    ),
    Environment(
        "drift-waves",
        "report",
        "slow drift: levels swing by a factor e each way, twice a run",
        Synthetic(shape=synthetic.Waves(1.0, 2.0)),
    ),
    Environment(
        "permuted-half-time",
        "report",
        "all levels are permuted at half time",
        Synthetic(shape=synthetic.Permuted((0.5,))),
    ),
    Environment(
        "permuted-quarters",
        "tune",
        "a third of the levels is permuted at each quarter",
        Synthetic(shape=synthetic.Permuted((0.25, 0.5, 0.75), share=1 / 3)),
    ),
    Environment(
        "permuted-often",
        "report",
        "a tenth of the levels is permuted at each tenth",
        Synthetic(shape=synthetic.Permuted(tuple(tenth / 10 for tenth in range(1, 10)), share=0.1)),
    ),
    Environment("noise-normal", "tune", "mini-batch noise by a factor e", Synthetic(noise=1.0)),
    Environment(
        "noise-pareto",
        "report",
        "mini-batch noise with a Pareto tail (exponent 2)",
        Synthetic(noise=0.1, shape=synthetic.HeavyTailed(2.0)),
    ),
    Environment(
        "bursts",
        "report",
        "bursts: ten times the norm for 20 rounds, twice a run",
        Synthetic(spread=1.0, shape=synthetic.Bursts(10.0, 20.0, 2.0)),
    ),
    Environment(
        "spikes",
        "tune",
        "bursts of 2 rounds, thirty times the norm, twice a run",
        Synthetic(spread=1.0, shape=synthetic.Bursts(30.0, 2.0, 2.0)),
    ),
    Environment("alike", "tune", "no heterogeneity at all", Synthetic(spread=0.0, noise=0.2)),
    Environment(
        "alike-noisy",
        "report",
        "no heterogeneity, much mini-batch noise",
        Synthetic(spread=0.0, noise=0.8),
    ),
    Environment(
        "sizes-mislead",
        "report",
        "the smaller the client, the more it has to say: norms go with 1/size^1.5, Pareto sizes",
        Synthetic(spread=0.3, sizes=synthetic.pareto, shape=synthetic.AgainstSizes(1.5)),
    ),
    Environment(
        "sizes-cancel",
        "tune",
        "norms go with 1/size, Pareto sizes: uniform is nearly optimal, proportional is not",
        Synthetic(spread=0.3, sizes=synthetic.pareto, shape=synthetic.AgainstSizes(1.0)),
    ),
    Environment(
        "zipf-iid",
        "report",
        "Zipf sizes, i.i.d. data",
        Synthetic(spread=0.0, noise=0.3, sizes=synthetic.zipf),
    ),
    Environment("zipf-mixed", "tune", "Zipf sizes, norms unrelated to them", Synthetic(sizes=synthetic.zipf)),
    Environment(
        "clients-20000",
        "report",
        "20,000 clients, 50 drawn, Pareto sizes (measured in every fifth round)",
        Synthetic(20_000, 50, num_rounds=300, spread=1.0, sizes=synthetic.pareto, measured_every=5),
    ),
    Environment(
        "clients-5000",
        "tune",
        "5,000 clients, 30 drawn (measured in every third round)",
        Synthetic(5_000, 30, num_rounds=300, measured_every=3),
    ),
    Environment("clients-50", "tune", "50 clients, 10 drawn", Synthetic(50, 10, num_rounds=300)),
    Environment(
        "clients-20",
        "report",
        "20 clients, 10 drawn, Pareto sizes",
        Synthetic(20, 10, num_rounds=200, sizes=synthetic.pareto),
    ),
    Environment(
        "decay", "tune", "all norms fall together, to a thousandth", Synthetic(shape=synthetic.Decay(1e-3))
    ),
    Environment(
        "level-jumps",
        "report",
        "all norms fall to a tenth at 30% and 60%, and rise a hundredfold at 80%",
        Synthetic(shape=synthetic.Jumps(((0.3, 0.1), (0.6, 0.1), (0.8, 100.0)))),
    ),
    Environment(
        "fading",
        "report",
        "client after client is fitted and falls to a hundredth",
        Synthetic(shape=synthetic.Fading(0.01)),
    ),
    Environment(
        "growing-apart", "tune", "clients start alike and grow apart", Synthetic(shape=synthetic.Growing())
    ),
    Environment(
        "newcomers",
        "report",
        "a fifth of the clients sends nothing for a third of the run, then five times what others do",
        Synthetic(spread=1.0, shape=synthetic.Newcomers(0.2, 1 / 3, 5.0)),
    ),
    Environment(
        "newcomers-mild",
        "report",
        "a quarter of the clients sends nothing for 40% of the run, then four times what others do",
        Synthetic(spread=1.0, shape=synthetic.Newcomers(0.25, 0.4, 4.0)),
    ),
    Environment(
        "latecomers-few",
        "tune",
        "a tenth of the clients sends nothing for half of the run, then ten times what others do",
        Synthetic(shape=synthetic.Newcomers(0.1, 0.5, 10.0)),
    ),
    Environment(
        "latecomers-many",
        "tune",
        "a third of the clients sends nothing for a quarter of the run, then three times what others do",
        Synthetic(spread=1.0, shape=synthetic.Newcomers(1 / 3, 0.25, 3.0)),
    ),
    Environment(
        "zeros",
        "tune",
        "each client has nothing to send in 30% of the rounds",
        Synthetic(shape=synthetic.Zeros(0.3)),
    ),
    Environment(
        "two-clusters",
        "tune",
        "a fifth of the clients has ten times the norm of the others",
        Synthetic(spread=0.1, shape=synthetic.Clusters(0.2, 10.0)),
    ),
    Environment(
        "few-heavy",
        "report",
        "2 of 100 clients have fifty times the norm of the others",
        Synthetic(spread=0.3, shape=synthetic.Clusters(0.02, 50.0)),
    ),
)

ENVIRONMENTS: dict[str, Environment] = {environment.name: environment for environment in ALL}
"""All of them by name."""


def environments_of(split: Split, names: Sequence[str] | None = None) -> list[Environment]:
    """The environments of a split, or those ``names`` whatever their half."""
    if names is not None:
        for name in names:
            if name not in ENVIRONMENTS:
                raise ConfigurationError(
                    f"environments must be out of {', '.join(ENVIRONMENTS)}, got {name!r}"
                )
        return [ENVIRONMENTS[name] for name in names]
    return [environment for environment in ALL if split in ("all", environment.half)]
