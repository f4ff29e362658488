"""What the wrapper costs: a simulated round of plain FedAvg beside one of AdaptiveSampling(FedAvg).

Both run in one simulation on Ray, the same clients and the same model, round about: some rounds of one, some
of the other, and so on. The wrapper's own time is measured inside as well, since a simulated round varies by
more than it costs:

    python benchmarks/flower_overhead.py                  # 1,000 nodes, K = 50, 100,000 parameters
    python benchmarks/flower_overhead.py --nodes 100 --cohort-size 10 --turns 1
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import time

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0")

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.simulation import run_simulation

from sortition.integrations.flower import AdaptiveSampling

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """As cheap as a client can be, so that the share of the wrapper is the largest that it can be."""
    partition = int(context.node_config["partition-id"])
    model = message.content["arrays"]["model"].numpy()
    arrays = ArrayRecord({"model": Array(model + np.float32(0.001 * (partition % 10)))})
    metrics = MetricRecord({"num-examples": 1 + partition % 7})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@client_app.query()
def who(message: Message, context: Context) -> Message:
    """So that the nodes are known by their partitions, as in the example."""
    answer = ConfigRecord({"partition-id": context.node_config["partition-id"]})
    return Message(RecordDict({"identity": answer}), reply_to=message)


def rounds(strategy: Strategy, grid: Grid, arrays: ArrayRecord, count: int) -> list[tuple[float, float]]:
    """Seconds of each round, and those of them that the strategy itself took."""
    taken = []
    for server_round in range(1, count + 1):
        start = time.perf_counter()
        messages = list(strategy.configure_train(server_round, arrays, ConfigRecord(), grid))
        configured = time.perf_counter()
        replies = list(grid.send_and_receive(messages))
        received = time.perf_counter()
        stepped, _ = strategy.aggregate_train(server_round, replies)
        end = time.perf_counter()
        arrays = stepped if stepped is not None else arrays
        taken.append((end - start, configured - start + end - received))
    return taken


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--cohort-size", type=int, default=50)
    parser.add_argument("--parameters", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5, help="of each, in a turn")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        logging.disable(logging.INFO)
        plain = FedAvg(fraction_train=options.cohort_size / options.nodes, fraction_evaluate=0.0)
        wrapped = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=options.cohort_size)
        arrays = ArrayRecord({"model": Array(np.zeros(options.parameters, dtype=np.float32))})
        rounds(plain, grid, arrays, 2)  # workers start
        begin = time.perf_counter()
        rounds(wrapped, grid, arrays, 1)  # nodes are asked who they are, numba compiles
        first = time.perf_counter() - begin
        times: dict[str, list[tuple[float, float]]] = {"plain": [], "wrapped": []}
        for _ in range(options.turns):
            times["plain"] += rounds(plain, grid, arrays, options.rounds)
            times["wrapped"] += rounds(wrapped, grid, arrays, options.rounds)
        whole = {name: statistics.median(t for t, _ in taken) for name, taken in times.items()}
        own = {name: statistics.median(o for _, o in taken) for name, taken in times.items()}
        extra = own["wrapped"] - own["plain"]
        print(
            f"\n{options.nodes} nodes, K = {options.cohort_size}, {options.parameters} parameters, medians:"
        )
        for name in times:
            print(f"  {name:8} round {whole[name]:7.3f} s, of it in the strategy {1e3 * own[name]:7.1f} ms")
        print(
            f"  the wrapper adds {1e3 * extra:.1f} ms: {100 * extra / whole['plain']:.2f}% of a plain round"
        )
        print(f"  its first round, with {options.nodes} queries: {first:.1f} s, once")

    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2, "log_to_driver": False}}
    run_simulation(server_app, client_app, options.nodes, backend_config=resources)


if __name__ == "__main__":
    main()
