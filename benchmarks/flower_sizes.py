"""Flower with and without known data sizes: rounds to a loss, in this process and without Ray.

    python benchmarks/flower_sizes.py [--seeds 20] [--federation digits] [--methods flower unknown ...]

Two federations on scikit-learn's digits: *digits* is that of examples/flower-digits, *dominant* has 200
clients, one with 900 images and the others with 4. The methods: *flower* is plain FedAvg, *unknown* is
AdaptiveSampling whose clients can't be asked for their sizes, *known* is the same with clients that answer,
*memory* and *known-memory* are these two with a memory, *uniform* has a uniform sampler and unknown sizes.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from sklearn.datasets import load_digits

from sortition import UniformSampler
from sortition.integrations.flower import AdaptiveSampling

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "flower-digits"))
from flower_digits import task

Data = list[tuple[np.ndarray, np.ndarray]]
METHODS = ("flower", "unknown", "known", "uniform", "memory", "known-memory")
CLIENT_APP_RAISED = 2


@dataclass(frozen=True)
class Federation:
    """Data sizes, and what is to be reached."""

    sizes: tuple[int, ...]
    cohort_size: int
    target: float
    most_rounds: int


FEDERATIONS = {
    "digits": Federation(task.SIZES, cohort_size=10, target=0.4, most_rounds=150),
    "dominant": Federation((900,) + (4,) * 199, cohort_size=10, target=0.7, most_rounds=150),
}


def split(sizes: Iterable[int], seed: int) -> Data:
    """The images and labels of every client, as in the example: most have only one digit or two."""
    rng = np.random.default_rng(seed)
    pixels, labels = load_digits(return_X_y=True)
    images = np.column_stack([pixels / 16.0, np.ones(len(pixels))])
    shuffled = rng.permutation(list(sizes))
    chosen = rng.permutation(len(images))[: shuffled.sum()]
    chosen = chosen[np.argsort(labels[chosen], kind="stable")]
    return [(images[piece], labels[piece]) for piece in np.split(chosen, np.cumsum(shuffled)[:-1])]


class LocalGrid(Grid):
    """A grid whose clients train here, one after the other."""

    def __init__(self, data: Data, seed: int, tells_sizes: bool) -> None:
        self._data, self._seed, self._tells_sizes = data, seed, tells_sizes

    def get_node_ids(self) -> Iterable[int]:
        return range(1, len(self._data) + 1)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=f"client-{node:03}") for node in self.get_node_ids()]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return [self._reply(message) for message in messages]

    def _reply(self, message: Message) -> Message:
        message.metadata.__dict__["_message_id"] = str(uuid4())
        client = message.metadata.dst_node_id - 1
        images, labels = self._data[client]
        if message.metadata.message_type == MessageType.QUERY:
            if not self._tells_sizes:
                return Message(Error(CLIENT_APP_RAISED, "No query function registered"), reply_to=message)
            answer = ConfigRecord({"num-examples": len(images)})
            return Message(RecordDict({"answer": answer}), reply_to=message)
        rng = np.random.default_rng((self._seed, int(message.content["config"]["server-round"]), client))
        model = message.content["arrays"]["model"].numpy()
        arrays = ArrayRecord({"model": Array(task.train(model, images, labels, rng, 5, 1.0))})
        metrics = MetricRecord({"num-examples": len(images)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *arguments: object, **options: object) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def make_strategy(method: str, federation: Federation, seed: int) -> Strategy:
    """The strategy of a method."""
    clients, cohort_size = len(federation.sizes), federation.cohort_size
    if method == "flower":
        return FedAvg(fraction_train=cohort_size / clients, fraction_evaluate=0.0)
    inner, most = FedAvg(fraction_evaluate=0.0), max(federation.sizes)  # or "dominant" looks like a liar
    if method == "uniform":
        sampler = UniformSampler(num_clients=clients, cohort_size=cohort_size, design="fixed_size", seed=seed)
        return AdaptiveSampling(inner, sampler=sampler, max_examples=most)
    return AdaptiveSampling(
        inner, cohort_size=cohort_size, seed=seed, memory="memory" in method, max_examples=most
    )


class TargetReached(Exception):  # noqa: N818 - not an error
    """Ends a run."""


@dataclass
class Outcome:
    """What a run came to."""

    rounds: int
    """The first round at the target; one more than were run if it was not reached."""
    worst: float
    """The largest loss up to then, from the sixth round on."""


def run(method: str, federation: Federation, seed: int, draws: int) -> Outcome:
    """One run, up to the target; ``draws`` seeds the draws, ``seed`` the federation."""
    data = split(federation.sizes, seed)
    images, labels = (np.concatenate(each) for each in zip(*data, strict=True))
    losses: list[float] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        scores = task.log_probabilities(arrays["model"].numpy(), images)
        losses.append(float(-scores[np.arange(len(labels)), labels].mean()))
        if losses[-1] <= federation.target:
            raise TargetReached

    random.seed(draws)
    with suppress(TargetReached):
        make_strategy(method, federation, draws).start(
            LocalGrid(data, seed, tells_sizes=method.startswith("known")),
            ArrayRecord({"model": Array(task.initial_model())}),
            num_rounds=federation.most_rounds,
            evaluate_fn=evaluate,
        )
    reached = losses[-1] <= federation.target
    return Outcome(len(losses) - reached, max(losses[6:], default=losses[-1]))


def main() -> None:
    """Print a table for each federation: rounds to the target by seed, then the other figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--draws", type=int, default=1, help="runs of each seed, with draws of their own")
    parser.add_argument("--federation", nargs="*", default=list(FEDERATIONS), choices=list(FEDERATIONS))
    parser.add_argument("--methods", nargs="*", default=["flower", "unknown", "known"], choices=METHODS)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    for name in options.federation:
        federation = FEDERATIONS[name]
        print(f"\n{name}: rounds to a loss of {federation.target}, mean of {options.draws} runs")
        print("seed" + "".join(f"{method:>14}" for method in options.methods), flush=True)
        outcomes: dict[str, list[Outcome]] = {method: [] for method in options.methods}
        for seed in range(options.seeds):
            cells = ""
            for method in options.methods:
                runs = [run(method, federation, seed, 1000 * d + seed) for d in range(options.draws)]
                outcomes[method] += runs
                cells += f"{np.mean([each.rounds for each in runs]):>14.1f}"
            print(f"{seed:>4}{cells}", flush=True)
        for label, figure in (
            ("mean", lambda runs: np.mean([each.rounds for each in runs])),
            ("worst", lambda runs: max(each.worst for each in runs)),
        ):
            print(f"{label:>6}" + "".join(f"{figure(outcomes[each]):>14.3g}" for each in options.methods))


if __name__ == "__main__":
    main()
