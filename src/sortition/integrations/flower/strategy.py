"""``AdaptiveSampling``: a Flower strategy that draws the clients of each round adaptively."""

from __future__ import annotations

import inspect
import json
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from sortition.core.errors import CohortError, ConfigurationError, FeedbackError, StateError
from sortition.core.protocols import Sampler
from sortition.core.state import scalar, text
from sortition.core.types import BoolArray, FloatArray
from sortition.core.validation import named_keywords, number_between, whole_number
from sortition.integrations.flower.aggregation import ClientReplies, OpenRound, RoundModel
from sortition.integrations.flower.arrays import arrays_of, record_of
from sortition.integrations.flower.clipping import MOST_EXCESS, clip_for
from sortition.integrations.flower.evaluation import STREAM, OpenEvaluation, draw_evaluators
from sortition.integrations.flower.history import EVALUATE, SERVER, TRAIN, History, OnRound
from sortition.integrations.flower.identities import (
    Identities,
    IdentityFunction,
    is_unreachable,
    natural_order,
    registered_identity,
)
from sortition.integrations.flower.inner import (
    NOT_PRIVATE,
    CohortGrid,
    InnerStrategy,
    check_evaluation,
    check_train_nodes,
)
from sortition.integrations.flower.memory_sum import NO_MEMORY_MOD, RECORD, MemorySum
from sortition.integrations.flower.metrics import (
    ERROR,
    OF_NORMS,
    VarianceRatio,
    evaluation_metrics,
    memory_metrics,
    sampling_metrics,
    standard_errors,
)
from sortition.integrations.flower.model_memory import ClientUpdate, Combined, ModelMemory
from sortition.integrations.flower.pool import ClientPool, WeighedReplies, string_list
from sortition.integrations.flower.replies import Complaints, UnusableError
from sortition.integrations.flower.secure_sum import SecureRound, workflow_for

log = logging.getLogger("flwr.sortition")

KIND = "AdaptiveSampling"
VERSION = 3
MODEL = "model."
"""Prefix of the model's arrays in the state."""
ROUNDS_IN_VAIN = 3
"""A run stops if so many rounds had replies, and there never was one of any use."""
EVALUATED, REPORTED = "flower_evaluated", "flower_reported"
"""Notes in the ledger: the metrics of a round after its evaluation, and that ``on_round`` has returned."""


@dataclass
class _Outcome:
    """What comes of a round."""

    weighed: WeighedReplies
    lengths: FloatArray
    """Of the updates, also of those refused for it, aligned with the cohort; nan means no reply."""
    factors: FloatArray
    """What updates were multiplied by since they were too long, aligned with the cohort."""
    refused: int
    usable: BoolArray
    """Whose reply could be used, aligned with the cohort."""
    combined: Combined | None = None
    arrays: ArrayRecord | None = None
    """The new model; None if there is none."""
    client_metrics: MetricRecord | None = None

    @property
    def feedback(self) -> FloatArray:
        """(share times norm) squared, of what was added up."""
        if self.combined is not None:  # these are norms of residuals, made of shorter updates
            return self.weighed.feedback
        return self.weighed.feedback * self.factors[~np.isnan(self.weighed.sampler_norms)] ** 2


class AdaptiveSampling(Strategy):
    r"""A strategy that draws the clients of each round by a sampler that learns which of them matter.

    In each round the sampler draws a cohort from the clients online. ``inner`` writes the messages to them,
    and each returns a model :math:`w_m`. From these models one is made,

    .. math:: w' = w - \sum_m \lambda_m \, \mathrm{weight}_m \, (w - w_m),

    an unbiased estimate of what all available clients together would return. ``inner`` sees it as a single
    reply and takes its step. The sampler learns from the norms :math:`\|w - w_m\|`. Any ClientApp works
    unchanged.

    Parameters
    ----------
    inner
        FedAvg, FedAdam, FedAvgM, FedProx, FedYogi, FedAdagrad or a subclass of one of these, with
        ``fraction_train=1.0``.
    cohort_size
        The number of clients that train in a round, for the default sampler; if no more are online, all
        train. Give either this or ``sampler``.
    sampler
        A sampler of your own, built without ``client_weights``: it begins uniformly, whatever the sizes, and
        learns from norms times sizes. Clients are numbered in the order of their
        identities; clients that join later get the next numbers.
    num_examples
        Data sizes by identity, as far as they are known in advance. They take precedence over what a client
        reports. Other sizes are those that clients tell when they are asked or, if they tell none, report in
        their replies (``weighted_by_key`` of ``inner``).
    max_examples
        A client counts for no more examples than this, whatever it reports. By default the bound is made of
        the sizes of all clients (docs/research/flower-rules.md). Sizes in ``num_examples`` are not bounded.
    identity
        Returns the identity of a node, or None to ask the client. By default it is the name or key that the
        SuperNode was registered with; clients without one are asked.
    reported_key
        The key under which a client that is asked reports its identity.
    seed
        The seed of the default sampler, and of the draws for evaluation.
    evaluate_cohort_size
        Draw so many clients to evaluate the model in each round, such that the means of their metrics are
        those of all clients online, on average, with standard errors. By default evaluation is left to
        ``inner``.
    ledger
        The file to record the run in, such as ``"run.db"``. Every draw and every round is on disk before the
        next step. If the file holds a run, ``start`` continues it, even after a crash in mid-round.
    resume_timeout
        Seconds to wait, after a crash in mid-round, for drawn clients that have not reconnected yet.
    memory
        Remember the clients' updates, so that only their changes are estimated from the cohort
        (``sortition.Memory``). Less noise, for 4 bytes a parameter and client: on the server with True, on
        the clients with ``"clients"``, whose ClientApp then needs the mod ``remember_updates``.
    averaged_arrays
        Names of arrays that are averaged over the replies, as statistics of data are, and never extrapolated.
        Integers, booleans and arrays whose name ends in ``running_mean``, ``running_var`` or
        ``num_batches_tracked`` always are. They do not count towards the norm of an update.
    clip_updates
        Make updates shorter that are much longer than those of the other clients: longer than the
        ``norm_bound`` of a guard that has seen the lengths of all updates
        (docs/research/hostile-clients.md). One that is more than 1,000 times as long as that is refused.
    memory_bytes
        The most that a memory on the server may take. If the clients online at the start need more, it is an
        error.
    secure_aggregation
        Add up the clients' updates by Flower's SecAgg+ before the server sees them, with True or a
        ``SecAggPlusWorkflow`` of yours. ClientApps need ``mods=[secaggplus_mod, weigh_update]``. Norms, sizes
        and metrics of the clients stay visible (docs/reference/private-federations.md).
    """

    @named_keywords
    def __init__(
        self,
        inner: Strategy,
        *,
        cohort_size: int | None = None,
        sampler: Sampler | None = None,
        num_examples: Mapping[str, float] | None = None,
        max_examples: float | None = None,
        identity: IdentityFunction = registered_identity,
        reported_key: str = "partition-id",
        seed: int = 0,
        evaluate_cohort_size: int | None = None,
        ledger: str | os.PathLike[str] | None = None,
        resume_timeout: float = 120.0,
        memory: bool | Literal["clients"] = False,
        memory_bytes: int = 4 * 2**30,
        averaged_arrays: Collection[str] = (),
        clip_updates: bool = True,
        secure_aggregation: bool | SecAggPlusWorkflow = False,
    ) -> None:
        self._inner = InnerStrategy(inner)
        self._pool = ClientPool(sampler, cohort_size, num_examples, seed, ledger, max_examples)
        check_train_nodes(self._inner.strategy, self._pool.cohort_size)
        self._seed, self._evaluate_cohort_size = seed, 0
        if evaluate_cohort_size is not None:
            self._evaluate_cohort_size = whole_number("evaluate_cohort_size", evaluate_cohort_size, least=2)
            check_evaluation(self._inner.strategy, self._evaluate_cohort_size)
        self._evaluation: OpenEvaluation | None = None
        self._evaluators: dict[str, Message] = {}  # the messages that ask for an evaluation, by client
        self._resume_timeout = number_between("resume_timeout", resume_timeout, 0.0, math.inf)
        self._identities = Identities(identity, reported_key, self._inner.strategy.weighted_by_key)
        if not (isinstance(memory, bool) or memory == "clients"):
            raise ConfigurationError(f"memory must be True, False or 'clients', got {memory!r}")
        self._memory: ModelMemory | MemorySum | None = None
        if memory:
            self._memory = MemorySum() if memory == "clients" else ModelMemory(memory_bytes)
        self._memory_kind = str(memory)
        self._secure = workflow_for(secure_aggregation)
        if self._secure is not None and self._memory is not None:
            raise ConfigurationError(
                "memory can't be used with secure_aggregation: it needs each client's update"
            )
        if isinstance(averaged_arrays, str) or not all(isinstance(key, str) for key in averaged_arrays):
            raise ConfigurationError(f"averaged_arrays must be names of arrays, got {averaged_arrays!r}")
        self._averaged_arrays = frozenset(averaged_arrays)
        self._clip = clip_for(clip_updates, sampler)
        self._complaints = Complaints()
        self._ratio = VarianceRatio()
        self._round: OpenRound | SecureRound | None = None
        self._arrays: ArrayRecord | None = None  # the current model
        self._rounds_done = 0
        self._resume_after = 0  # the round after which the next start continues
        self._history = History()
        self._reported = 0  # the last round that on_round has returned from
        self._is_started = False
        self._is_wrapped = False
        self._timeout: float | None = None
        self._rounds_in_vain = 0  # rounds with replies before the first of any use

    @property
    def inner(self) -> Strategy:
        """The inner strategy."""
        return self._inner.strategy

    @property
    def sampler(self) -> Sampler | None:
        """The sampler. The default one is built in the first round; it is None before."""
        return self._pool.sampler

    @property
    def identities(self) -> tuple[str, ...]:
        """All clients seen so far; the place of an identity is its id in the sampler."""
        return self._pool.identities

    # One round: configure_train, the replies of the clients, aggregate_train -------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw a cohort, and let ``inner`` write the messages to it."""
        if self._is_wrapped:
            raise ConfigurationError(
                "AdaptiveSampling can't be wrapped in another strategy, whose start() seems to be running. "
                "Call start() of AdaptiveSampling itself. If the other strategy is for differential privacy: "
                + NOT_PRIVATE
            )
        model = RoundModel(arrays, self._averaged_arrays)
        online = self._wait_for_clients(grid)
        if self._memory is not None:
            self._memory.make_room(model.arrays, len(online), self._averaged_arrays)
        drawn = self._pool.draw(online, self._identities.reported_sizes)
        if drawn.is_asked_again:
            online = self._wait_for_cohort(grid, drawn.names, online)
        places = {online[name]: place for place, name in enumerate(drawn.names) if name in online}
        messages = self._inner.configure_train(server_round, arrays, config, grid, nodes=list(places))
        if isinstance(self._memory, MemorySum):
            for message in messages:
                client = int(drawn.cohort.clients[places[message.metadata.dst_node_id]])
                message.content = RecordDict({**message.content, RECORD: self._memory.question(client)})
        self._arrays = arrays
        if self._secure is not None:
            # SecAgg+ sends four messages to each client: nothing is left for Flower to send.
            self._round = SecureRound(drawn, places, model).exchanged(
                self._secure,
                grid,
                messages,
                server_round,
                size_key=self._inner.strategy.weighted_by_key,
                timeout=self._timeout,
            )
            return []
        self._round = OpenRound(drawn, messages, places, model)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Weigh the replies, let ``inner`` take its step, and let the sampler observe the norms."""
        if self._round is None:
            raise CohortError("aggregate_train was called without configure_train before it")
        current, self._round = self._round, None
        drawn = current.drawn

        # What the clients returned, and the new model. If it can't be used, it is as if nobody had replied.
        replies_of_round = current.read(
            replies, self._inner.strategy.weighted_by_key, self._pool, self._complaints
        )
        try:
            outcome = self._step(current, replies_of_round, server_round)
            self._stop_in_vain(outcome)
            if outcome.arrays is None and not len(outcome.weighed.replied):
                log.warning("No usable reply in round %d: model and sampler stay as they are", server_round)
        except UnusableError as error:
            log.warning(
                "\t> Round %d counts as one without a reply. The new model can't be used: %s (%s)",
                *(server_round, error.reason, error.found),
            )
            silent, usable = np.full(len(drawn.cohort), np.nan), ~np.isnan(replies_of_round.lengths)
            usable[error.due_to] = False
            refused = replies_of_round.refused + len(replies_of_round.contents)
            weighed = self._pool.weigh(drawn, self._pool.count(drawn, silent), silent, silent, 0.0)
            outcome = _Outcome(weighed, silent, np.ones(len(silent)), refused, usable)
        weighed = outcome.weighed
        num_replies = len(weighed.replied)
        log.info(
            "aggregate_train: drew %d of %d clients online%s; %d replied, %d failed%s",
            *(len(drawn.cohort), len(drawn.available)),
            f" ({drawn.resting} more rest)" if drawn.resting else "",
            *(num_replies, len(drawn.cohort) - num_replies),
            f" ({outcome.refused} refused)" if outcome.refused else "",
        )

        # Nothing has changed until here.
        too_long = [] if self._pool.is_private else np.flatnonzero(outcome.factors < 1.0).tolist()
        for place in too_long:
            self._complaints.say(
                drawn.names[place],
                "was made shorter, since it is much longer than what others return",
                f" (to {outcome.factors[place]:.2g} of its length)",
            )
        self._ratio.update(weighed.replied, weighed.probabilities, outcome.feedback, len(drawn.available))
        metrics = sampling_metrics(drawn, weighed, self._ratio.value, len(self._pool.identities))
        metrics["sampling-refused"] = outcome.refused
        metrics["sampling-clipped"] = len(too_long)
        if outcome.arrays is not None:
            self._arrays = outcome.arrays
        if outcome.combined is not None:
            self._memory = outcome.combined.memory
        if self._clip is not None:
            self._clip.observe(drawn.cohort, outcome.lengths)
        if self._memory is not None:
            metrics.update(memory_metrics(outcome.combined, self._memory.num_bytes))
        if self._pool.is_private:
            for name in OF_NORMS:
                metrics.pop(name, None)
        metrics = MetricRecord({**(outcome.client_metrics or {}), **metrics})

        # What the sampler learns; with a ledger, the new state is on disk before.
        self._rounds_done = server_round
        self._history.add(server_round, TRAIN, metrics)
        self._pool.observe(drawn, weighed, outcome.usable, state=lambda: self._state(with_sampler=False))
        return outcome.arrays, metrics

    def _stop_in_vain(self, outcome: _Outcome) -> None:
        """Raise if clients have replied in several rounds, and no reply of the run was of any use."""
        replies = len(outcome.weighed.replied)
        if not replies + outcome.refused:
            return
        if outcome.weighed.total_weight > 0.0 or (self._pool.any_reply and not self._rounds_in_vain):
            self._rounds_in_vain = 0
            return
        self._rounds_in_vain += 1
        if self._rounds_in_vain < ROUNDS_IN_VAIN:
            return
        found = f"The last one that was refused is {self._complaints.last_refusal}"
        if replies:
            key = self._inner.strategy.weighted_by_key
            found = f"All that could be read report 0 examples ({key!r}), so nobody counts"
        raise FeedbackError(
            f"clients must send replies that can be used, but none was in {ROUNDS_IN_VAIN} rounds with "
            f"replies: the model is still the first one. {found}. Mend the ClientApp, and start again"
        )

    def _step(self, current: OpenRound | SecureRound, replies: ClientReplies, server_round: int) -> _Outcome:
        """What the replies make of the model; an UnusableError if that is unfit. Only ``inner`` changes."""
        drawn, cohort = current.drawn, current.drawn.cohort
        lengths, factors = replies.lengths, np.ones(len(cohort))
        if self._clip is not None and not replies.sums:  # what was added up elsewhere can't be made shorter
            factors = self._clip.factors(cohort, lengths)
            if not self._pool.is_private:
                replies, factors = self._without_diverged(drawn.names, replies, factors)
        heard = ~np.isnan(replies.lengths)
        counted = self._pool.count(drawn, replies.sizes)
        counts = drawn.counted(counted.sizes)
        norms, offline_examples = counted.sizes * replies.lengths, 0.0
        combined: Combined | None = None
        if self._memory is not None and (heard.any() or not len(cohort)):
            counting = replace(cohort, weights=counted.factor * cohort.weights)
            combined = self._memory.combine(
                counting, self._clipped_updates(current, replies, factors, counts)
            )
            memories = [reply.memory is not None for reply in replies.checked.values()]
            if isinstance(self._memory, MemorySum) and memories and not any(memories):
                self._complaints.once(NO_MEMORY_MOD)
            told = np.divide(counted.sizes, counts, out=np.ones(len(counts)), where=counts > 0.0)
            norms, offline_examples = told * combined.norms, combined.offline_examples
        weighed = self._pool.weigh(drawn, counted, norms, counted.sizes, offline_examples)
        outcome = _Outcome(weighed, lengths, factors, replies.refused, usable=heard, combined=combined)
        if not heard.any() and (combined is None or combined.coefficient == 0.0):
            return outcome

        # The step of the inner strategy. If nobody was drawn, what is remembered still counts.
        scale = counted.factor * weighed.step_scale
        steps = {key: scale * total for key, total in replies.sums.items()}
        if combined is not None:
            steps = current.model.split(weighed.step_scale * combined.aggregate)
        coefficients = counted.factor * weighed.shares * weighed.replied.weights
        try:
            moved = current.model.moved(
                [reply.arrays for reply in replies.checked.values()], coefficients, factors[heard], steps
            )
            replies.checked.clear()  # the arrays need not stay in memory
            current.model.accepted(moved, moved)
            with self._inner.undone_if_refused():
                with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is checked
                    stepped, outcome.client_metrics = self._inner.aggregate_train(
                        server_round, moved, replies.contents, counts, cohort.weights
                    )
                if stepped is not None:
                    outcome.arrays = current.model.accepted(stepped, moved)
        except UnusableError as error:
            if self._pool.is_private:
                raise
            parts = np.sqrt(outcome.feedback) * weighed.replied.weights
            largest = [i for i in np.argsort(-parts) if parts[i] >= 0.5 * parts.max()][:3]
            places = np.flatnonzero(heard)[largest].tolist()
            diverged = np.flatnonzero(~heard & ~np.isnan(lengths)).tolist()
            names = ", ".join(drawn.names[place] for place in places)
            found = f"{error.found} the largest part of the step is that of {names}".strip()
            raise UnusableError(error.reason, found, due_to=places + diverged) from None
        return outcome

    def _without_diverged(
        self, names: Sequence[str], replies: ClientReplies, factors: FloatArray
    ) -> tuple[ClientReplies, FloatArray]:
        """The replies without updates that are beyond all measure, and what the others are multiplied by."""
        diverged = np.flatnonzero(factors < 1.0 / MOST_EXCESS).tolist()
        for place in diverged:
            error = UnusableError(
                f"its update is more than {MOST_EXCESS:g} times as long as clip_updates allows",
                f"{1.0 / factors[place]:.2g} times",
            )
            self._complaints.refused(names[place], error)
            factors[place] = 1.0
        return replies.without(diverged), factors

    def _clipped_updates(
        self,
        current: OpenRound | SecureRound,
        replies: ClientReplies,
        factors: FloatArray,
        counts: FloatArray,
    ) -> list[ClientUpdate | None]:
        """The updates that a memory gets, aligned with the cohort."""
        updates: list[ClientUpdate | None] = [None] * len(factors)
        for place, reply in replies.checked.items():
            update = factors[place] * current.model.update(reply.arrays)
            updates[place] = ClientUpdate(
                update, float(counts[place]), reply.memory, bool(factors[place] < 1.0)
            )
        return updates

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As ``inner`` does it, without clients that rest; with ``evaluate_cohort_size``, by a draw."""
        if not self._evaluate_cohort_size:
            inner, self._evaluators = self._inner.strategy, {}
            if not inner.fraction_evaluate:
                return inner.configure_evaluate(server_round, arrays, config, grid)
            online = self._online(grid)
            awake = self._without_resting(grid, online)
            messages = list(inner.configure_evaluate(server_round, arrays, config, awake))
            self._take_note_of_evaluators(messages, online)
            return messages
        online = self._wait_for_clients(grid)
        names = sorted(self._pool.evaluators(online, self._evaluate_cohort_size), key=natural_order)
        known, given = self._pool.sizes_of(names)
        known = np.where(
            (known == 0.0) & np.isnan(given), np.nan, known
        )  # it may still have data to evaluate on
        generator = np.random.default_rng([STREAM, self._seed, server_round])
        drawn, inclusion = draw_evaluators(known, self._evaluate_cohort_size, generator)
        places = {online[names[client]]: place for place, client in enumerate(drawn.tolist())}
        messages = self._inner.configure_evaluate(server_round, arrays, config, grid, nodes=list(places))
        evaluators = [names[client] for client in drawn.tolist()]
        self._evaluation = OpenEvaluation(evaluators, inclusion, given[drawn], len(names), messages, places)
        self._take_note_of_evaluators(messages, online)
        return messages

    def _take_note_of_evaluators(self, messages: list[Message], online: Mapping[str, int]) -> None:
        names = {node: name for name, node in online.items()}
        asked = [(message, names.get(message.metadata.dst_node_id)) for message in messages]
        self._evaluators = {name: message for message, name in asked if name is not None}

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As ``inner`` does it; with ``evaluate_cohort_size``, the means of all clients online, estimated."""
        replies, evaluators, self._evaluators = list(replies), self._evaluators, {}
        answered = {reply.metadata.reply_to_message_id for reply in replies if not is_unreachable(reply)}
        silent = [name for name, message in evaluators.items() if message.metadata.message_id not in answered]
        self._pool.observe_evaluation(evaluators, silent)
        if not self._evaluate_cohort_size:
            try:
                return self._inner.strategy.aggregate_evaluate(server_round, replies)
            except Exception as error:  # what a client sends must not end the run
                log.warning("The evaluation of round %d failed and is left out: %r", server_round, error)
                return None
        if self._evaluation is None:
            raise CohortError("aggregate_evaluate was called without configure_evaluate before it")
        current, self._evaluation = self._evaluation, None
        heard = current.read(
            replies, self._inner.strategy.weighted_by_key, self._pool.counted_evaluation, self._complaints
        )
        counts = evaluation_metrics(current.num_available, len(current.names), len(heard.contents))
        log.info(
            "aggregate_evaluate: drew %d of %d clients online; %d replied, %d failed",
            *(len(current.names), current.num_available, len(heard.contents)),
            len(current.names) - len(heard.contents),
        )
        if not heard.weights.sum() > 0.0:
            return counts
        means = self._inner.aggregate_evaluate(server_round, heard.contents, heard.sizes, heard.weights)
        means = MetricRecord() if means is None else means
        errors = standard_errors(heard.metrics, heard.weights, heard.inclusion)
        known = {name: error for name, error in errors.items() if name.removesuffix(ERROR) in means}
        return MetricRecord({**means, **known, **counts})

    def _without_resting(self, grid: Grid, online: Mapping[str, int]) -> Grid:
        """A grid on which clients that rest can't be seen, unless the others are too few for ``inner``."""
        inner = self._inner.strategy
        awake = self._pool.evaluators(online, max(inner.min_available_nodes, inner.min_evaluate_nodes))
        resting = {node for name, node in online.items() if name not in set(awake)}
        return CohortGrid(grid, [node for node in grid.get_node_ids() if node not in resting])

    def _wait_for_clients(self, grid: Grid) -> dict[str, int]:
        """The node id of each client online, as soon as there are enough."""
        inner = self._inner.strategy
        least = max(1, inner.min_available_nodes, inner.min_train_nodes)
        told = -1
        while len(online := self._online(grid)) < least:
            if len(online) != told:
                told = len(online)
                log.info("Waiting for clients: %d online, at least %d needed", told, least)
            time.sleep(1)
        return online

    def _wait_for_cohort(self, grid: Grid, names: Sequence[str], online: dict[str, int]) -> dict[str, int]:
        """Wait for clients that were drawn before a crash and have not reconnected yet."""
        deadline = time.monotonic() + self._resume_timeout
        waits = False
        while missing := [name for name in names if name not in online]:
            if time.monotonic() >= deadline or not any(map(self._identities.can_return, missing)):
                log.warning("Drawn before the crash, but not online: %s. No reply.", ", ".join(missing))
                break
            if not waits:
                log.info(
                    "Drawn before the crash, but not online yet: %s. Waiting for up to %g seconds.",
                    *(", ".join(missing), self._resume_timeout),
                )
            waits = True
            time.sleep(1)
            online = self._online(grid)
        return online

    def _online(self, grid: Grid) -> dict[str, int]:
        return self._identities.online(grid, lambda: self._pool.known_sizes)

    # A whole run -------------------------------------------------------------------------------------

    def summary(self) -> None:
        """Log the settings.

        Flower calls this at the beginning of ``start``. If our own ``start`` is not running, it is probably
        the ``start`` of a strategy that wraps this one, and the next ``configure_train`` raises an error.
        """
        self._is_wrapped = not self._is_started
        log.info("\t├──> Adaptive sampling: %s", self._pool.in_words)
        self._inner.strategy.summary()

    @named_keywords
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        on_round: OnRound | None = None,
    ) -> Result:
        """Run all rounds, or those that are left of a run in the ledger or of a loaded state.

        A resumed run starts from the saved model instead of ``initial_arrays``. Rounds keep their numbers:
        ``num_rounds`` counts from the beginning of the whole run, and the result holds all of its rounds.

        ``on_round(server_round, metrics, arrays)`` is called after each round and its evaluation. With a
        ledger, both are on disk by then. ``metrics`` holds numbers, and lists of numbers, by names such as
        ``"train/loss"``, ``"evaluate/loss"`` and ``"server/loss"`` (from ``evaluate_fn``).
        """
        if not isinstance(initial_arrays, ArrayRecord):
            raise ConfigurationError(
                "initial_arrays must be an ArrayRecord, such as ArrayRecord(model.state_dict()) or "
                f"ArrayRecord(list_of_arrays), got {type(initial_arrays).__name__}"
            )
        num_rounds = whole_number("num_rounds", num_rounds, least=0)
        timeout = self._timeout = number_between("timeout", timeout, 0.0, math.inf)
        _check_callable("evaluate_fn", evaluate_fn, "server_round", "arrays")
        _check_callable("on_round", on_round, "server_round", "metrics", "arrays")
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        begun, self._is_started = time.monotonic(), True

        def evaluate(server_round: int) -> None:
            """Evaluate the model of a round, unless that is done, and let ``on_round`` know."""
            if self._history.evaluated < server_round:
                messages = self.configure_evaluate(server_round, arrays, evaluate_config, grid)
                replies = grid.send_and_receive(messages, timeout=timeout)
                self._add_metrics(server_round, EVALUATE, self.aggregate_evaluate(server_round, replies))
                if evaluate_fn is not None:
                    self._add_metrics(server_round, SERVER, evaluate_fn(server_round, arrays))
                self._history.evaluated = server_round
                self._pool.log(self._history.logged(server_round), self._history.logged(0))
                self._pool.note(EVALUATED, self._history.state(since=server_round))
            if on_round is not None and self._reported < server_round:
                on_round(server_round, self._history.of_round(server_round), arrays)
                self._reported = server_round
                self._pool.note(REPORTED, {"round": server_round})

        try:
            done, arrays = self._resume(initial_arrays)
            self._log_start(num_rounds, initial_arrays, train_config, evaluate_config)
            if done >= num_rounds > 0:
                log.info("This run is finished: %d rounds are done, and num_rounds=%d", done, num_rounds)
            elif done:
                log.info("Resuming after round %d of %d", done, num_rounds)
            if done:
                evaluate(done)
            elif evaluate_fn is not None:
                self._add_metrics(0, SERVER, evaluate_fn(0, arrays))
            for server_round in range(done + 1, num_rounds + 1):
                log.info("")
                log.info("[ROUND %d/%d]", server_round, num_rounds)
                messages = self.configure_train(server_round, arrays, train_config, grid)
                replies = grid.send_and_receive(messages, timeout=timeout)
                stepped, metrics = self.aggregate_train(server_round, replies)
                log.info("\t└──> train: %s", metrics)
                arrays = arrays if stepped is None else stepped
                evaluate(server_round)
        finally:
            self._is_started = False
            self._pool.close()
        result = self._history.result(arrays)
        log.info("")
        log.info("Finished in %.2f seconds. All rounds:", time.monotonic() - begun)
        for line in str(result).splitlines():
            log.info("\t%s", line)
        return result

    def _resume(self, initial_arrays: ArrayRecord) -> tuple[int, ArrayRecord]:
        """The last complete round of the run in the ledger or of a loaded state, and the model after it."""
        state = self._pool.resume()
        if state is not None:
            self._restore(state, with_pool=False)
        done, self._resume_after = self._resume_after, 0
        if not done or self._arrays is None:
            if self._rounds_done:
                log.info(
                    "This strategy has run before. The model begins anew with initial_arrays, while the "
                    "sampler keeps what it has learnt: build a new AdaptiveSampling to begin anew with it."
                )
            self._history, self._reported = History(), 0
            return 0, initial_arrays
        _check_same_model(self._arrays, initial_arrays)
        return done, self._arrays

    def _add_metrics(self, server_round: int, source: str, metrics: MetricRecord | None) -> None:
        self._history.add(server_round, source, metrics)
        if metrics is not None:
            log.info("\t└──> %s: %s", source, metrics)

    def _log_start(
        self, num_rounds: int, arrays: ArrayRecord, train_config: ConfigRecord, evaluate_config: ConfigRecord
    ) -> None:
        log.info("Starting %s strategy:", type(self).__name__)
        log.info("\t├── Number of rounds: %d", num_rounds)
        log.info("\t├── ArrayRecord (%.2f MB)", sum(len(array.data) for array in arrays.values()) / 2**20)
        for name, config in (("train", train_config), ("evaluate", evaluate_config)):
            log.info("\t├── ConfigRecord (%s): %s", name, ", ".join(config) or "(empty!)")
        self.summary()

    # State -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs, as plain arrays, numbers and strings. Call it between rounds."""
        state = self._state(with_sampler=True)
        return {name: value.copy() if _is_changeable(value) else value for name, value in state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: ``start`` then goes on after the last complete round."""
        self._pool.refuse_state_beside_ledger()
        self._restore(state, with_pool=True)

    def _state(self, *, with_sampler: bool) -> dict[str, Any]:
        model = {} if self._arrays is None else arrays_of(self._arrays)
        return {
            "kind": KIND,
            "version": VERSION,
            "rounds": self._rounds_done,
            "memory_kind": self._memory_kind,
            "model_keys": json.dumps(list(model)),
            **{f"{MODEL}{place}": array for place, array in enumerate(model.values())},
            **self._inner.state(),
            **self._ratio.state(),
            **({} if self._clip is None else self._clip.state()),
            **({} if self._memory is None else self._memory.state()),
            **self._history.state(since=0 if with_sampler else self._rounds_done),
            **self._pool.state(with_sampler=with_sampler),
        }

    def _restore(self, state: Mapping[str, Any], *, with_pool: bool) -> None:
        """Read everything before anything is changed. The ledger has restored the pool already."""
        kind, version = text(state, "kind"), state.get("version")
        if kind != KIND or version != VERSION:
            raise StateError(f"state must be of kind {KIND}, version {VERSION}, got {kind!r}, {version!r}")
        rounds = int(scalar(state, "rounds"))
        keys = string_list(state, "model_keys")
        try:
            model = {key: state[f"{MODEL}{place}"] for place, key in enumerate(keys)}
        except KeyError as error:
            raise StateError(f"state must hold all arrays in 'model_keys', but {error} is missing") from None
        attributes, ratio = self._inner.attributes_in(state), VarianceRatio()
        ratio.restore(state)
        clip = None
        if self._clip is not None:
            clip = self._clip.restored(state, len(string_list(state, "identities")))
        memory = None if self._memory is None else self._memory.restored(state)
        history = History.restored(state, *self._pool.notes(EVALUATED))
        if with_pool:
            self._pool.restore(state)
        changes = self._inner.changed_settings(state)
        memory_kind = text(state, "memory_kind") if "memory_kind" in state else self._memory_kind
        if memory_kind != self._memory_kind:
            changes.append(f"memory was {memory_kind} and is {self._memory_kind}")
        for change in changes:
            log.warning("This run goes on with another setting: %s", change)
        self._inner.restore(attributes)
        self._ratio, self._clip, self._memory, self._history = ratio, clip, memory, history
        self._arrays = record_of(model)
        self._rounds_done = self._resume_after = rounds
        reported = [int(scalar(note, "round")) for note in self._pool.notes(REPORTED)]
        self._reported = history.evaluated if with_pool else max(reported, default=0)
        self._round = None


def _check_callable(name: str, function: object, *arguments: str) -> None:
    """Raise unless this is None or can be called with so many arguments."""
    if function is None:
        return
    expected = f"{name} must be a function of ({', '.join(arguments)})"
    if not callable(function):
        raise ConfigurationError(f"{expected}, got {function!r}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in functions have none
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise ConfigurationError(f"{expected}, got one of {signature}") from None


def _check_same_model(saved: ArrayRecord, given: ArrayRecord) -> None:
    """Raise if ``initial_arrays`` are not of the model that the run to be continued has."""

    def wrong(difference: str) -> ConfigurationError:
        return ConfigurationError(
            f"initial_arrays must be of the model in the run that is to be continued: {difference}. Give a "
            "model with the same arrays, or another ledger to begin a new run"
        )

    if missing := [key for key in saved if key not in given]:
        raise wrong(f"it has {missing[0]!r}, which initial_arrays has not")
    for key, array in given.items():
        if key not in saved:
            raise wrong(f"it has no {key!r}, which initial_arrays has")
        for what, there, here in (
            ("shape", tuple(saved[key].shape), tuple(array.shape)),
            ("type", saved[key].dtype, array.dtype),
        ):
            if there != here:
                raise wrong(f"{key!r} has {what} {there} there and {here} in initial_arrays")


def _is_changeable(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.flags.writeable
