"""What the wrapper costs: a simulated round of plain FedAvg beside one of AdaptiveSampling(FedAvg).

Both run in one simulation on Ray, the same clients and the same model, round about: some rounds of one, some
of the other, and so on. The wrapper's own time is measured inside as well, since a simulated round varies by
more than it costs:

    python benchmarks/flower_overhead.py                  # 1,000 nodes, K = 50, 100,000 parameters
    python benchmarks/flower_overhead.py --nodes 100 --cohort-size 10 --turns 1

With ``--large`` there is no simulation: K replies with a large model are made, and ``aggregate_train`` is
called, by itself. Each strategy has a process of its own, whose largest memory is measured too:

    python benchmarks/flower_overhead.py --large          # K = 20, 25,000,000 parameters
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0")

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, Strategy
from flwr.simulation import run_simulation
from flwr.supercore.task_identity import TaskIdentity

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


# Large models ------------------------------------------------------------------------------------------

QUIET = {"fraction_evaluate": 0.0}
LARGE: dict[str, Callable[[int, Path], Strategy]] = {
    "FedAvg": lambda k, _: FedAvg(min_available_nodes=k, **QUIET),
    "AdaptiveSampling(FedAvg)": lambda k, _: AdaptiveSampling(FedAvg(**QUIET), cohort_size=k),
    "FedAdam": lambda k, _: FedAdam(min_available_nodes=k, **QUIET),
    "AdaptiveSampling(FedAdam)": lambda k, _: AdaptiveSampling(FedAdam(**QUIET), cohort_size=k),
    "AdaptiveSampling(FedAdam, ledger)": lambda k, directory: AdaptiveSampling(
        FedAdam(**QUIET), cohort_size=k, ledger=directory / "run.db"
    ),
}


class Nodes(Grid):
    """Nodes that return the model and a little noise."""

    def __init__(self, count: int, parameters: int) -> None:
        self._count, self._parameters = count, parameters

    def get_node_ids(self) -> Iterable[int]:
        return range(1, self._count + 1)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=f"client-{node}") for node in self.get_node_ids()]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies, size = [], self._parameters
        noise = np.random.default_rng(0).normal(size=size).astype(np.float32)
        header = Array(np.zeros(size, dtype=np.float32)).data[: -4 * size]
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            if "arrays" not in message.content:  # a query
                continue
            noise *= np.float32(0.99)
            data = b"".join((header, noise.data))
            arrays = ArrayRecord({"model": Array("float32", (size,), "numpy.ndarray", data)})
            metrics = MetricRecord({"num-examples": 10, "loss": 1.0})
            replies.append(Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message))
        return replies

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def measure_large(name: str, cohort_size: int, parameters: int, count: int) -> None:
    """Print CPU seconds and seconds of ``aggregate_train``, the least but the first, and the peak memory."""
    logging.disable(logging.CRITICAL)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    arrays = ArrayRecord({"model": Array(np.zeros(parameters, dtype=np.float32))})
    grid = Nodes(cohort_size, parameters)
    with tempfile.TemporaryDirectory() as directory:
        strategy, used, taken = LARGE[name](cohort_size, Path(directory)), [], []
        for server_round in range(1, count + 1):
            messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
            replies = grid.send_and_receive(messages)
            begin, begin_used = time.perf_counter(), time.process_time()
            stepped, _ = strategy.aggregate_train(server_round, replies)
            used.append(time.process_time() - begin_used)
            taken.append(time.perf_counter() - begin)
            assert stepped is not None
            arrays = stepped
            del replies, messages
            gc.collect()  # messages are in cycles: without this, some are there for a round longer
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(json.dumps([min(used[1:]), min(taken[1:]), peak]))


def compare_large(cohort_size: int, parameters: int, count: int) -> None:
    """Measure each strategy in a process of its own, and print a table."""
    print(f"K = {cohort_size}, {parameters} parameters of float32: aggregate_train\n")
    plain: list[float] = []
    for name in LARGE:
        options = ["--cohort-size", cohort_size, "--parameters", parameters, "--rounds", count]
        command = [sys.executable, __file__, "--only", name, *map(str, options)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        plain = found if name.startswith("Fed") else plain
        ratios = ", ".join(f"{one / other:.2f}" for one, other in zip(found, plain, strict=True))
        figures = f"{found[0]:6.2f} s of CPU, {found[1]:6.2f} s, {found[2]:5.2f} GB"
        print(f"  {name:34} {figures}; over plain Flower: {ratios}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--cohort-size", type=int, help="50, or 20 with --large")
    parser.add_argument("--parameters", type=int, help="100,000, or 25,000,000 with --large")
    parser.add_argument("--large", action="store_true", help="time and memory of aggregate_train alone")
    parser.add_argument("--only", choices=LARGE, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5, help="of each, in a turn")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    large = options.large or options.only
    options.cohort_size = options.cohort_size or (20 if large else 50)
    options.parameters = options.parameters or (25_000_000 if large else 100_000)
    if options.only:
        measure_large(options.only, options.cohort_size, options.parameters, options.rounds)
        return
    if large:
        compare_large(options.cohort_size, options.parameters, options.rounds)
        return
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
