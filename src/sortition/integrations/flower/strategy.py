"""A Flower strategy that draws its clients adaptively, around another one."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from sortition.core.errors import CohortError, StateError
from sortition.core.protocols import Sampler
from sortition.core.state import scalar, text
from sortition.integrations.flower.arrays import Model, to_plain, to_record
from sortition.integrations.flower.identities import Identities, IdentityFunction, registered_identity
from sortition.integrations.flower.inner import Inner
from sortition.integrations.flower.lottery import ClientPool, names_of
from sortition.integrations.flower.metrics import VarianceRatio, sampling_metrics
from sortition.integrations.flower.refusals import refuse_private_wrapper
from sortition.integrations.flower.replies import aggregated_metrics
from sortition.integrations.flower.rounds import OpenRound

log = logging.getLogger("flwr.sortition")

KIND = "AdaptiveSampling"
VERSION = 1
MODEL = "model."
LONGEST_QUERY = 60.0


class AdaptiveSampling(Strategy):
    r"""Draws the clients of each round by a sampler that learns, and hands ``inner`` the unbiased result.

    In each round the sampler draws a cohort from the clients online. Each drawn client gets the message that
    ``inner`` has for it and returns a model :math:`w_m`; ``inner`` then sees a single reply,

    .. math:: w' = w - \sum_m \lambda_m \, \mathrm{weight}_m \, (w - w_m),

    whose step is an unbiased estimate of the one that all available clients together would make, and the
    sampler learns from the norms :math:`\|w - w_m\|`. Clients need nothing: any ClientApp works unchanged.

    Parameters
    ----------
    inner
        FedAvg, FedAdam, FedAvgM, FedProx, FedYogi, FedAdagrad or a subclass, with ``fraction_train=1.0``.
        How it evaluates is left to it.
    cohort_size
        K, the draws of a round, for a sampler of the default kind; or
    sampler
        any sampler, built without ``client_weights``. Clients get its ids in the order of their identities,
        newcomers later ones.
    num_examples
        Data sizes by identity, where they are known beforehand; they come first. The others' are learnt
        from their replies (``weighted_by_key`` of ``inner``), see :class:`DataSizes`.
    identity
        Who a node is: by registration unless you say otherwise, see :mod:`.identities`.
    reported_key
        What a client that has to be asked reports as its identity, in answer to a query.
    seed
        Of the default sampler.
    ledger
        Where to record the run, e.g. ``run.db``: every draw and every round is on disk before the next step.
        If there is a run already, ``start`` continues it, also after a crash in the middle of a round.
    """

    def __init__(
        self,
        inner: Strategy,
        *,
        cohort_size: int | None = None,
        sampler: Sampler | None = None,
        num_examples: Mapping[str, float] | None = None,
        identity: IdentityFunction = registered_identity,
        reported_key: str = "partition-id",
        seed: int = 0,
        ledger: str | os.PathLike[str] | None = None,
    ) -> None:
        self._inner = Inner(inner)
        self._lottery = ClientPool(sampler, cohort_size, num_examples, seed, ledger)
        self._identities = Identities(identity, reported_key, self._inner.strategy.weighted_by_key)
        self._ratio = VarianceRatio()
        self._query_timeout = LONGEST_QUERY
        self._round: OpenRound | None = None
        self._giants: set[str] = set()  # of whom the log has told
        self._arrays: ArrayRecord | None = None
        self._done = 0  # the last round that is complete
        self._resume_at = 0
        self._offset = 0

    @property
    def inner(self) -> Strategy:
        """The strategy inside."""
        return self._inner.strategy

    @property
    def sampler(self) -> Sampler | None:
        """The sampler; None until the first round tells how many clients there are."""
        return self._lottery.sampler

    @property
    def identities(self) -> tuple[str, ...]:
        """Every client ever seen; the place of an identity is its id in the sampler."""
        return self._lottery.identities

    def summary(self) -> None:
        """Log the settings."""
        refuse_private_wrapper()
        sampler = self._lottery.sampler
        log.info("\t├──> Sampling adaptively: %s", type(sampler).__name__ if sampler else "default sampler")
        self._inner.strategy.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds, as any strategy does.

        After ``load_state_dict`` the run goes on where it stopped: ``num_rounds`` counts from the very
        beginning, ``initial_arrays`` give way to the saved ones, and all rounds keep their true numbers.
        """
        self._query_timeout = min(timeout, LONGEST_QUERY)
        try:
            kept = self._lottery.resume()
            if kept is not None:
                self._restore(kept, lottery=False)
            offset, self._resume_at = self._resume_at, 0
            arrays = self._arrays if offset and self._arrays is not None else initial_arrays
            if offset:
                log.info("Resuming after round %d of %d", offset, num_rounds)
            self._offset = offset

            def evaluate(server_round: int, evaluated: ArrayRecord) -> MetricRecord | None:
                return evaluate_fn(server_round + offset, evaluated) if evaluate_fn else None

            result = super().start(
                grid,
                arrays,
                max(num_rounds - offset, 0),
                timeout,
                train_config,
                evaluate_config,
                evaluate if evaluate_fn else None,
            )
        finally:
            self._offset = 0
            self._lottery.close()
        if not result.arrays:  # no round, or none with a reply
            result.arrays = arrays
        for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, name, {key + offset: value for key, value in getattr(result, name).items()})
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the cohort and take the messages of ``inner`` to it."""
        refuse_private_wrapper()
        online = self._wait_for_clients(grid)
        drawn = self._lottery.draw(online, self._identities.reported_sizes)
        nodes = [online[name] for name in drawn.names if name in online]
        messages = self._inner.configure(server_round + self._offset, arrays, config, grid, nodes)
        places = {online[name]: place for place, name in enumerate(drawn.names) if name in online}
        astray = [message.metadata.dst_node_id for message in messages]
        astray = [node for node in astray if node not in places]
        if astray:
            raise CohortError(
                f"inner must send messages to the nodes it is offered only, got node {astray[0]}"
            )
        self._round = OpenRound(drawn, messages, places, Model(arrays))
        self._arrays = arrays
        log.info("configure_train: drew %d clients (out of %d)", len(nodes), len(online))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Weigh the replies, let the sampler learn, and let ``inner`` take its step."""
        if self._round is None:
            raise CohortError("configure_train must come before aggregate_train, but no round is open")
        current, self._round = self._round, None
        drawn, cohort = current.drawn, current.drawn.cohort
        heard = current.hear(replies, self._inner.strategy.weighted_by_key, self._lottery.given_size)
        settled = self._lottery.settle(drawn, heard.norms, heard.sizes)
        self._warn_of_a_giant()
        places = np.searchsorted(drawn.available, settled.replied.clients)
        feedback = (settled.shares * settled.norms) ** 2
        self._ratio.update(settled.replied, drawn.probabilities[places], feedback, len(drawn.available))
        metrics = sampling_metrics(
            drawn=cohort,
            replied=settled.replied,
            probabilities=drawn.probabilities,
            shares=settled.shares,
            ratio=self._ratio,
            met=self._lottery.met,
            num_clients=len(self._lottery.identities),
        )
        true_round = server_round + self._offset
        self._done = true_round
        replies_heard = len(heard.contents)
        log.info("aggregate_train: %d replies, %d failures", replies_heard, len(cohort) - replies_heard)
        if not heard.contents:
            log.warning("No reply in round %d: model and sampler stay as they are", true_round)
            self._lottery.learn(drawn, settled, partial(self._state, sampler=False))
            return None, metrics
        moved = current.model.moved(settled.scale)
        reported = aggregated_metrics(self._inner.strategy, heard.contents, heard.sizes * cohort.weights)
        stepped, aggregated = self._inner.aggregate(true_round, moved, reported)
        if stepped is not None:
            self._arrays = stepped = current.model.retyped(stepped, moved)
        self._lottery.learn(drawn, settled, partial(self._state, sampler=False))
        return stepped, MetricRecord({**(aggregated or {}), **metrics})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As ``inner`` does it."""
        return self._inner.strategy.configure_evaluate(server_round + self._offset, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As ``inner`` does it."""
        return self._inner.strategy.aggregate_evaluate(server_round + self._offset, replies)

    # State -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that a continued run needs after a complete round: plain arrays, numbers and strings."""
        return self._state(sampler=True)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: ``start`` then goes on after the last complete round."""
        self._lottery.refuse_ledger()
        self._restore(state, lottery=True)

    def _state(self, *, sampler: bool) -> dict[str, Any]:
        model = {} if self._arrays is None else to_plain(self._arrays)
        return {
            "kind": KIND,
            "version": VERSION,
            "rounds": self._done,
            "model_keys": json.dumps(list(model)),
            **{f"{MODEL}{place}": array for place, array in enumerate(model.values())},
            **self._inner.state(),
            **self._ratio.state(),
            **self._lottery.state(sampler=sampler),
        }

    def _restore(self, state: Mapping[str, Any], *, lottery: bool) -> None:
        """Read everything before anything is changed."""
        kind, version = text(state, "kind"), state.get("version")
        if kind != KIND or version != VERSION:
            raise StateError(f"state must be of kind {KIND}, version {VERSION}, got {kind!r}, {version!r}")
        rounds = int(scalar(state, "rounds"))
        keys = names_of(state, "model_keys")
        try:
            model = {key: state[f"{MODEL}{place}"] for place, key in enumerate(keys)}
        except KeyError as error:
            raise StateError(f"state must hold the arrays of the model, got none called {error}") from None
        attributes, ratio = self._inner.decoded(state), VarianceRatio()
        ratio.restore(state)
        if lottery:
            self._lottery.restore(state)
        self._inner.become(attributes)
        self._ratio = ratio
        self._arrays = to_record(model)
        self._done = self._resume_at = rounds
        self._round = None

    # Details -----------------------------------------------------------------------------------------

    def _warn_of_a_giant(self) -> None:
        giant = self._lottery.giant()
        if giant is None or giant in self._giants:
            return
        self._giants.add(giant)
        log.warning(
            "\t> %s reports more examples than all others known together, so the model is mostly its own. "
            "If that is not so, give the sizes: num_examples={%r: ..., ...}",
            giant,
            giant,
        )

    def _wait_for_clients(self, grid: Grid) -> dict[str, int]:
        least = max(1, self._inner.strategy.min_available_nodes)
        while len(online := self._identities.online(grid, self._query_timeout)) < least:
            log.info("Waiting for clients: %d online, at least %d needed.", len(online), least)
            time.sleep(1)
        return online
