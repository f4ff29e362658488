"""The server: counts the rounds that each sampling needs to reach a target loss, and what they cost."""

import random
from dataclasses import astuple
from itertools import product
from statistics import fmean

from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from flower_digits import task
from flower_digits.costs import Costs
from sortition import UniformSampler
from sortition.integrations.flower import AdaptiveSampling

app = ServerApp()

SAMPLINGS = ("flower", "uniform", "adaptive", "memory")


class TargetReached(Exception):  # noqa: N818 - not an error
    """Ends a run, since the target is reached."""


def make_strategy(sampling: str, cohort_size: int, seed: int, ledger: str | None) -> Strategy:
    """FedAvg with Flower's own sampling, with uniform and unbiased sampling, or with adaptive sampling."""
    if sampling == "flower":
        random.seed(seed)
        return FedAvg(fraction_train=cohort_size / task.NUM_CLIENTS, fraction_evaluate=0.0)
    inner = FedAvg(fraction_evaluate=0.0)
    if sampling == "uniform":
        sampler = UniformSampler(num_clients=task.NUM_CLIENTS, cohort_size=cohort_size, seed=seed)
        return AdaptiveSampling(inner, sampler=sampler, ledger=ledger)
    memory = sampling == "memory"
    return AdaptiveSampling(inner, cohort_size=cohort_size, seed=seed, memory=memory, ledger=ledger)


def check_samplings(samplings: list[str]) -> None:
    """Raise if one of them is unknown, before anything runs."""
    unknown = [sampling for sampling in samplings if sampling not in SAMPLINGS]
    if unknown or not samplings:
        raise ValueError(f"samplings must be some of {', '.join(SAMPLINGS)}, got {' '.join(samplings)!r}")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run each kind of sampling on each federation, and print rounds and costs up to the target."""
    settings = context.run_config
    samplings, target = str(settings["samplings"]).split(), float(settings["target-loss"])
    seeds, most = range(int(settings["seeds"])), int(settings["most-rounds"])
    ledger = str(settings["ledger"]) or None
    check_samplings(samplings)
    if ledger and (len(samplings) > 1 or len(seeds) > 1):
        raise ValueError("a ledger records one run: give one sampling and seeds=1")
    send_and_receive = grid.send_and_receive
    rounds: dict[tuple[str, int], str] = {}
    costs: dict[tuple[str, int], Costs] = {}
    for seed, sampling in product(seeds, samplings):
        config = ConfigRecord(
            {
                "seed": seed,
                "local-steps": int(settings["local-steps"]),
                "learning-rate": float(settings["learning-rate"]),
            }
        )

        def evaluate(server_round: int, arrays: ArrayRecord) -> None:
            if task.loss(arrays["model"].numpy(), seed) <= target:  # noqa: B023 - called in this iteration only
                raise TargetReached(server_round)

        strategy = make_strategy(sampling, int(settings["cohort-size"]), seed, ledger)
        costs[sampling, seed] = Costs()
        costs[sampling, seed].count(grid, send_and_receive)
        start = ArrayRecord({"model": Array(task.initial_model())})
        try:
            strategy.start(grid, start, num_rounds=most, train_config=config, evaluate_fn=evaluate)
            rounds[sampling, seed] = f">{most}"
        except TargetReached as reached:
            rounds[sampling, seed] = str(reached)

    print(f"\nRounds to a loss of {target}, {settings['cohort-size']} of {task.NUM_CLIENTS} clients a round")
    print("seed" + "".join(f"{sampling:>10}" for sampling in samplings))
    for seed in seeds:
        print(f"{seed:>4}" + "".join(f"{rounds[sampling, seed]:>10}" for sampling in samplings))

    print("\nWhat they cost, mean of the seeds")
    print("           trainings    images  examples  MB to clients  MB from clients")
    for sampling in samplings:
        of_seeds = (astuple(costs[sampling, seed]) for seed in seeds)
        trainings, images, examples, sent, received = map(fmean, zip(*of_seeds, strict=True))
        print(
            f"{sampling:<10}{trainings:>10.0f}{images:>10.0f}{examples:>10.0f}"
            f"{sent / 1e6:>15.2f}{received / 1e6:>17.2f}"
        )
