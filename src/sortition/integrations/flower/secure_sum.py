r"""Secure aggregation with Flower's SecAgg+: the server sees the weighted sum of the updates and their norms.

Client m multiplies its update by :math:`n_m\,\mathrm{weight}_m / n`: its number of examples, times the weight
of its draw, over the number of examples of all clients online. SecAgg+ masks the product and adds it up over
the cohort. Flower's workflow divides the sum by the sum of the weights that clients report; here all report
the same weight, so it returns the mean over the clients in the sum, and the sum is the mean times their
number. Beside the masked product a client sends the norm of its update, its number of examples and its
metrics.

The protocol is Flower's: ``flwr.server.workflow.SecAggPlusWorkflow`` on the server and
``flwr.client.mod.secaggplus_mod`` on the clients.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Parameters,
    Status,
    bytes_to_ndarray,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common.recorddict_compat import (
    fitres_to_recorddict,
    parameters_to_arrayrecord,
    recorddict_to_fitres,
)
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.serverapp import Grid

from sortition.core.errors import ConfigurationError
from sortition.core.types import FloatArray
from sortition.integrations.flower.aggregation import LONGEST, ClientReplies, RoundModel
from sortition.integrations.flower.arrays import arrays_of
from sortition.integrations.flower.memory_sum import ClientAppCallable
from sortition.integrations.flower.pool import ClientPool, DrawnCohort
from sortition.integrations.flower.replies import Complaints, UnusableError, log_failures

log = logging.getLogger("flwr.sortition")

RECORD = "sortition-secure"
"""The record in a message that tells a client its factor, and that in its reply with norm and size."""
NEEDED_MODS = (
    "secure_aggregation needs ClientApp(mods=[secaggplus_mod, weigh_update]), in this order: the first from "
    "flwr.client.mod, the second from sortition.integrations.flower"
)
NO_ARRAYS = Parameters(tensors=[], tensor_type="")


# The client ----------------------------------------------------------------------------------------------


def weigh_update(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod for the ClientApp: weigh this client's update for ``AdaptiveSampling(secure_aggregation=True)``.

    It comes after Flower's mod, which masks what this one returns:
    ``ClientApp(mods=[secaggplus_mod, weigh_update])``. Other mods follow these two.

    If an entry of the product is beyond the clipping range of SecAgg+, all arrays that count towards the norm
    are made shorter by the same factor. Others, such as batch counters, are clipped by Flower.
    """
    question = message.content.pop(RECORD, None)
    if not isinstance(question, ConfigRecord):
        return call_next(message, context)
    del message.content[RECORD_KEY_CONFIGS]  # Flower's mod has read it
    (model,) = message.content.array_records.values()
    start = arrays_of(model)
    reply = call_next(message, context)
    if reply.has_error():
        raise RuntimeError(reply.error.reason)
    (returned,) = reply.content.array_records.values()
    (metrics,) = reply.content.metric_records.values()
    arrays = arrays_of(returned)
    if {key: array.shape for key, array in arrays.items()} != {k: array.shape for k, array in start.items()}:
        raise ValueError("the reply must hold the arrays of the model, in their shapes")
    size = _number(question, "num-examples")
    if size < 0.0:  # the server does not know it better
        size = _number(metrics, str(question["size-key"]))

    updates = {key: arrays[key].astype(np.float64) - array for key, array in start.items()}
    summed = [updates[key] for key in cast(list[str], question["summed"])]
    norm = float(np.sqrt(sum(np.sum(update**2) for update in summed)))
    factor, limit = size * _number(question, "factor"), _number(question, "limit")
    largest = factor * max((float(np.max(np.abs(update), initial=0.0)) for update in summed), default=0.0)
    if not (size >= 0.0 and np.isfinite(size * norm + largest)):
        raise ValueError(f"number of examples and update must be finite, got {size} and norm {norm}")
    shrink = min(1.0, limit / largest) if largest > 0.0 else 1.0
    for update in summed:
        update *= shrink
    # Flower's workflow returns wrong numbers for arrays without dimensions: all are sent with one.
    product = FitRes(
        status=Status(Code.OK, ""),
        parameters=ndarrays_to_parameters([factor * update.reshape(-1) for update in updates.values()]),
        num_examples=cast(int, question["weight"]),  # the same for all clients
        metrics={},
    )
    content = fitres_to_recorddict(product, keep_input=False)
    content["metrics"] = metrics
    content[RECORD] = MetricRecord({"norm": norm, "num-examples": size, "shrink": shrink})
    return Message(content, reply_to=message)


def _number(record: Mapping[str, Any], key: str) -> float:
    return float(record[key])


# The server ----------------------------------------------------------------------------------------------


def workflow_for(secure_aggregation: object) -> SecAggPlusWorkflow | None:
    """Flower's workflow, with settings of the user's or of ours; None if it is not asked for."""
    if isinstance(secure_aggregation, SecAggPlusWorkflow):
        return secure_aggregation
    if not isinstance(secure_aggregation, bool):
        raise ConfigurationError(
            f"secure_aggregation must be True, False or a SecAggPlusWorkflow, got {secure_aggregation!r}"
        )
    return SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.5) if secure_aggregation else None


@dataclass(frozen=True)
class SecureReply:
    """What the server sees of one client."""

    norm: float
    num_examples: float
    shrink: float
    """Below 1 if the product did not fit into the range of the workflow and was made shorter."""
    metrics: MetricRecord


@dataclass(frozen=True)
class SecureSum:
    """What the server sees of a round."""

    total: list[FloatArray]
    """The sum of ``factor * num_examples * update``, one entry an array of the model; empty without a sum."""
    replies: dict[int, SecureReply]
    """Those in the sum, by node."""
    refused: dict[int, UnusableError]
    """Why replies were left out of the sum, by node."""
    failed: dict[int, str | None]
    """The errors that came instead of replies, by node; None means that nothing came in time."""


@dataclass(frozen=True)
class SecureRound:
    """A round whose updates are added up before the server sees them."""

    drawn: DrawnCohort
    places: dict[int, int]
    """The place in the cohort of each node that was asked."""
    model: RoundModel
    received: SecureSum | None = None

    def exchanged(
        self,
        workflow: SecAggPlusWorkflow,
        grid: Grid,
        messages: list[Message],
        server_round: int,
        *,
        size_key: str,
        timeout: float | None,
    ) -> SecureRound:
        """Send the messages, and wait for the sum."""
        total, most = self.drawn.total_size, workflow.modulus_range // workflow.quantization_range
        if np.isnan(total):
            raise ConfigurationError(
                "secure_aggregation needs data sizes before the first round: give num_examples=, or let the "
                "clients report them in answer to the query (docs/reference/flower.md)"
            )
        if len(messages) > most:
            raise ConfigurationError(
                f"secure_aggregation can add up {most} clients (modulus_range / quantization_range), got a "
                f"cohort of {len(messages)}"
            )
        contents = {}
        for message in messages:
            node = message.metadata.dst_node_id
            place = self.places[node]
            known = float(self.drawn.known_sizes[place])
            question = ConfigRecord(
                {
                    "factor": float(self.drawn.cohort.weights[place]) / total,
                    "num-examples": -1.0 if np.isnan(known) else known,
                    "size-key": size_key,
                    "summed": self.model.summed,
                    "limit": float(workflow.clipping_range),
                    "weight": float(workflow.max_weight),
                }
            )
            contents[node] = RecordDict({**message.content, RECORD: question})
        sizes = [array.size for array in self.model.arrays.values()]
        return replace(self, received=exchange(workflow, grid, contents, sizes, server_round, timeout))

    def read(
        self, replies: Iterable[Message], size_key: str, pool: ClientPool, complaints: Complaints
    ) -> ClientReplies:
        """The sum, and what each client said; ``replies`` is empty, since they have been added up."""
        cohort, names = self.drawn.cohort, self.drawn.names
        lengths, sizes = np.full(len(cohort), np.nan), np.full(len(cohort), np.nan)
        contents: dict[int, RecordDict] = {}
        sums: dict[str, FloatArray] = {}
        refused = {} if self.received is None else self.received.refused
        failed = {} if self.received is None else self.received.failed
        log_failures({names[self.places[node]]: reason for node, reason in sorted(failed.items())})
        if failed and None not in failed.values() and len(failed) == len(self.places):
            complaints.once(f"All clients failed. {NEEDED_MODS}")
        for node, error in refused.items():
            complaints.refused(names[self.places[node]], error)
        if self.received is not None and self.received.total:
            for node, reply in self.received.replies.items():
                place = self.places[node]
                lengths[place] = reply.norm
                sizes[place] = reply.num_examples
                contents[place] = RecordDict({"metrics": reply.metrics})
                if reply.shrink < 1.0 and not pool.is_private:
                    log.warning(
                        "\t> The update of %s was multiplied by %.2g to fit into the clipping_range of "
                        "SecAgg+: choose a larger one",
                        names[place],
                        reply.shrink,
                    )
            factor = self.drawn.total_size * len(cohort) / len(contents)  # for those who did not reply
            sums = {
                key: factor * total.reshape(array.shape)
                for (key, array), total in zip(self.model.arrays.items(), self.received.total, strict=True)
            }
        return ClientReplies(lengths, sizes, contents=contents, refused=len(refused), sums=sums)


def exchange(
    workflow: SecAggPlusWorkflow,
    grid: Grid,
    contents: Mapping[int, RecordDict],
    sizes: list[int],
    server_round: int,
    timeout: float | None,
) -> SecureSum:
    """Send each node its content by SecAgg+, and add up what comes back; ``sizes`` are those of the arrays.

    SecAgg+ can do without a client that is lost while it trains, and one whose reply is malformed is treated
    like this. It can't do without one that is lost before: the other clients then raise an error. So it
    begins anew with the others.
    """
    failed: dict[int, str | None] = {}
    while True:
        round_grid, cohort = _StageGrid(grid, contents, sizes, timeout), _CohortOfNodes(list(contents))
        context = LegacyContext(
            Context(run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config={}),
            strategy=cast(Any, cohort),
            client_manager=cast(Any, cohort),
        )
        context.state[MAIN_PARAMS_RECORD] = parameters_to_arrayrecord(NO_ARRAYS, keep_input=True)
        context.state[MAIN_CONFIGS_RECORD] = ConfigRecord({"current_round": server_round})
        try:
            if contents:
                workflow(cast(Grid, round_grid), context)
        except _LostEarlyError as error:
            contents = {node: content for node, content in contents.items() if node not in error.lost}
            failed |= round_grid.failed
            if contents:
                log.info(
                    "\t> %d clients were lost before they trained: asking the others again", len(error.lost)
                )
            continue
        except Exception as error:  # whatever the clients make of the workflow, it must not end the run
            log.warning("\t> The sum can't be used: %r", error)
            cohort.mean = None
        replies = round_grid.replies
        total = [] if cohort.mean is None else [len(replies) * mean for mean in cohort.mean]
        return SecureSum(total, replies, round_grid.refused, failed | round_grid.failed)


def _read(content: RecordDict, sizes: list[int]) -> SecureReply:
    """What a client says beside its masked product; an error if one of them makes no sense."""
    if RECORD not in content:
        raise ValueError(NEEDED_MODS)
    recorddict_to_fitres(content, keep_input=True)  # as the workflow does
    masked = cast(list[bytes], content.config_records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS])
    arrays = [bytes_to_ndarray(part) for part in masked]
    if [array.shape for array in arrays] != [(size,) for size in (1, *sizes)]:
        raise ValueError("its masked arrays must have the sizes of the model's")
    if any(array.dtype.kind not in "iu" for array in arrays):
        raise ValueError("its masked arrays must hold integers")
    said, metrics = content[RECORD], content["metrics"]
    if not (isinstance(said, MetricRecord) and isinstance(metrics, MetricRecord)):
        raise ValueError("a reply must hold a MetricRecord of the client and one of the mod weigh_update")
    norm, size, shrink = (_number(said, key) for key in ("norm", "num-examples", "shrink"))
    if not (norm >= 0.0 and size >= 0.0 and norm * size <= LONGEST):
        raise ValueError(f"a reply must hold a norm and a number of examples, got {dict(said)}")
    return SecureReply(norm, size, shrink, metrics)


class _LostEarlyError(Exception):
    """Clients did not reply in the stages before training."""

    def __init__(self, lost: set[int]) -> None:
        super().__init__(lost)
        self.lost = lost


class _StageGrid:
    """The grid that the workflow sees: in the stage of training, messages carry what the strategy wrote."""

    def __init__(
        self, grid: Grid, contents: Mapping[int, RecordDict], sizes: list[int], timeout: float | None
    ) -> None:
        self._grid = grid
        self._contents = contents
        self._sizes = sizes
        self._timeout = timeout
        self.replies: dict[int, SecureReply] = {}
        self.refused: dict[int, UnusableError] = {}
        self.failed: dict[int, str | None] = {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        messages = list(messages)
        stages = set()
        for message in messages:
            settings = cast(ConfigRecord, message.content[RECORD_KEY_CONFIGS])
            stages.add(settings[Key.STAGE])
            if settings[Key.STAGE] == Stage.COLLECT_MASKED_VECTORS:
                node = message.metadata.dst_node_id
                message.content = RecordDict({**self._contents[node], RECORD_KEY_CONFIGS: settings})
        asked = {message.metadata.dst_node_id for message in messages}
        timeout = self._timeout if timeout is None else timeout
        received = list(self._grid.send_and_receive(messages, timeout=timeout))
        nodes = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        errors = {
            nodes.get(reply.metadata.reply_to_message_id): str(reply.error.reason)
            for reply in received
            if reply.has_error()
        }
        answers = {reply.metadata.src_node_id: reply for reply in received if reply.has_content()}
        if Stage.UNMASK not in stages:  # who is lost then is in the sum
            self.failed |= {node: errors.get(node) for node in asked - set(answers)}
        if stages & {Stage.SETUP, Stage.SHARE_KEYS} and asked - set(answers):
            raise _LostEarlyError(asked - set(answers))
        if Stage.COLLECT_MASKED_VECTORS in stages:
            for node, reply in answers.items():
                try:
                    self.replies[node] = _read(reply.content, self._sizes)
                except Exception as error:  # whatever is wrong with it, it is the client's fault
                    self.refused[node] = UnusableError("its masked reply can't be read", repr(error))
            received = [reply for reply in received if reply.metadata.src_node_id not in self.refused]
        return received


class _CohortOfNodes:
    """What the workflow needs of a strategy and a client manager: whom to ask, and a place for the mean."""

    def __init__(self, nodes: list[int]) -> None:
        self._nodes = nodes
        self.mean: list[FloatArray] | None = None

    def num_available(self) -> int:
        return len(self._nodes)

    def configure_fit(self, *arguments: object, **options: object) -> list[tuple[Any, FitIns]]:
        return [(_NodeProxy(node), FitIns(NO_ARRAYS, {})) for node in self._nodes]

    def aggregate_fit(
        self, server_round: int, results: list[tuple[Any, FitRes]], failures: object
    ) -> tuple[None, dict[str, Any]]:
        self.mean = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}


@dataclass(frozen=True)
class _NodeProxy:
    node_id: int
