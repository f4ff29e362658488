"""The server: counts the rounds that each kind of sampling needs to reach a target loss."""

import random

from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from flower_digits import task
from sortition import UniformSampler
from sortition.integrations.flower import AdaptiveSampling

app = ServerApp()

SAMPLINGS = ("flower", "uniform", "adaptive", "memory")


class TargetReached(Exception):  # noqa: N818 - not an error
    """Ends a run, since the target is reached."""


def make_strategy(sampling: str, cohort_size: int, seed: int) -> Strategy:
    """FedAvg with Flower's own sampling, with uniform and unbiased sampling, or with adaptive sampling."""
    if sampling == "flower":
        random.seed(seed)
        return FedAvg(fraction_train=cohort_size / task.NUM_CLIENTS, fraction_evaluate=0.0)
    inner = FedAvg(fraction_evaluate=0.0)
    if sampling == "uniform":
        sampler = UniformSampler(num_clients=task.NUM_CLIENTS, cohort_size=cohort_size, seed=seed)
        return AdaptiveSampling(inner, sampler=sampler)
    return AdaptiveSampling(inner, cohort_size=cohort_size, seed=seed, memory=sampling == "memory")


def check_samplings(samplings: list[str]) -> None:
    """Raise if one of them is unknown, before anything runs."""
    unknown = [sampling for sampling in samplings if sampling not in SAMPLINGS]
    if unknown or not samplings:
        raise ValueError(f"samplings must be some of {', '.join(SAMPLINGS)}, got {' '.join(samplings)!r}")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run each kind of sampling on each federation, and print the rounds to the target."""
    settings = context.run_config
    samplings, target = str(settings["samplings"]).split(), float(settings["target-loss"])
    most = int(settings["most-rounds"])
    check_samplings(samplings)
    rows = []
    for seed in range(int(settings["seeds"])):
        rounds = {}
        for sampling in samplings:
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

            strategy = make_strategy(sampling, int(settings["cohort-size"]), seed)
            start = ArrayRecord({"model": Array(task.initial_model())})
            try:
                strategy.start(grid, start, num_rounds=most, train_config=config, evaluate_fn=evaluate)
                rounds[sampling] = f">{most}"
            except TargetReached as reached:
                rounds[sampling] = str(reached)
        rows.append(rounds)

    print(f"\nRounds to a loss of {target}, {settings['cohort-size']} of {task.NUM_CLIENTS} clients a round")
    print("seed" + "".join(f"{sampling:>10}" for sampling in samplings))
    for seed, rounds in enumerate(rows):
        print(f"{seed:>4}" + "".join(f"{rounds[sampling]:>10}" for sampling in samplings))
