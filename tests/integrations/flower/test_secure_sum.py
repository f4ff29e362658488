"""With ``secure_aggregation=True``: the step of plain replies, from masked vectors, by Flower's SecAgg+."""

from __future__ import annotations

import copy
import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.client.mod import make_ffn, secaggplus_mod
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp.strategy import FedAvg

from sortition import Cohort, ConfigurationError
from sortition.integrations.flower import AdaptiveSampling, weigh_update
from sortition.integrations.flower.secure_sum import RECORD
from tests.helpers import cohorts
from tests.integrations.flower.fake_grid import (
    CLIENT_APP_RAISED,
    Client,
    FakeGrid,
    empty_context,
    federation,
    model,
    one_round,
    weights,
)
from tests.integrations.flower.test_model_memory import Scripted

SIZES = np.array([1.0, 2.0, 4.0, 5.0, 8.0])
TARGETS = np.array([3.0, -1.0, 0.5, 2.0, -2.0])
P = np.array([0.1, 0.3, 0.15, 0.25, 0.2])
START = (0.25, -0.5, 1.0)
GIVEN = {f"name:client-{place}": size for place, size in enumerate(SIZES)}
ALL = Cohort(0, 5, range(5), np.ones(5), np.ones(5), np.ones(5))
STEP = 2 * 8.0 / 2**22
"""Flower's quantization: a client's product is off by less than this, in each entry."""


class SecureGrid(FakeGrid):
    """Clients with both mods. ``lost`` names a stage in which a client does not reply."""

    def __init__(self, nodes, lost=None, spoil=None):
        super().__init__(nodes)
        self.lost = {} if lost is None else lost  # stage: places of clients
        self.spoil = spoil  # place: a function that changes the content of its masked reply
        self.contexts = {node: empty_context() for node in nodes}
        self.places = {node: place for place, node in enumerate(nodes)}
        self.seen: list[RecordDict] = []

    def _reply(self, message: Message) -> Message | None:
        if message.metadata.message_type != MessageType.TRAIN:
            return self._handled(message, self.nodes[message.metadata.dst_node_id][1])
        node = message.metadata.dst_node_id
        stage = message.content[RECORD_KEY_CONFIGS][Key.STAGE]
        if self.places[node] in self.lost.get(stage, ()):
            return None
        message.content = copy.deepcopy(message.content)  # as if it had been sent
        client = self.nodes[node][1]
        handle = make_ffn(lambda asked, _: self._handled(asked, client), [secaggplus_mod, weigh_update])
        try:
            reply = handle(message, self.contexts[node])
        except Exception as error:
            return Message(Error(CLIENT_APP_RAISED, repr(error)), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = node
        if self.spoil is not None and stage == Stage.COLLECT_MASKED_VECTORS:
            self.spoil(self.places[node], reply.content)
        self.seen.append(copy.deepcopy(reply.content))
        return reply


def clients(**options):
    return [Client(target=t, examples=n, **options) for t, n in zip(TARGETS, SIZES, strict=True)]


def strategy_for(cohort, **options):
    sampler = Scripted(num_clients=len(SIZES), cohort_size=2)
    sampler.told = cohort
    return AdaptiveSampling(FedAvg(fraction_evaluate=0.0), sampler=sampler, num_examples=GIVEN, **options)


def plain_round(cohort, several=None):
    return one_round(strategy_for(cohort), federation(several or clients()), model(*START))


def secure_round(cohort, several=None, **options):
    grid = SecureGrid(federation(several or clients()).nodes, **options)
    return one_round(strategy_for(cohort, secure_aggregation=True), grid, model(*START)), grid


def test_each_cohort_gives_the_step_of_plain_replies_and_their_mean_is_that_of_all_clients():
    """So it is unbiased: exactly, but for the quantization, whose mean is zero."""
    mean = np.zeros(3)
    for probability, cohort in cohorts("fixed_size", P, 2):
        plain, plain_metrics = plain_round(cohort)
        (stepped, metrics), _ = secure_round(cohort)
        assert np.abs(weights(stepped) - weights(plain)).max() <= 2 * STEP
        for key, value in plain_metrics.items():
            assert metrics[key] == pytest.approx(value, rel=1e-12), key
        mean += probability * weights(stepped)
    everybody, _ = plain_round(ALL)
    assert np.abs(mean - weights(everybody)).max() <= 2 * STEP


def test_the_server_sees_no_array_and_masks_hide_what_is_sent():
    _, grid = secure_round(ALL)
    masked = []
    for content in grid.seen:
        assert not any(len(record) for record in content.array_records.values())
        sent = content[RECORD_KEY_CONFIGS].get(Key.MASKED_PARAMETERS)
        if sent is not None:
            masked.append(np.concatenate([bytes_to_ndarray(part) for part in sent]))
    assert len(masked) == len(SIZES)
    assert np.all(np.stack(masked).max(axis=1) > 2**22)  # beyond the range of what is quantized
    said = [content[RECORD] for content in grid.seen if RECORD in content]
    assert sorted(record["num-examples"] for record in said) == sorted(SIZES)


@pytest.mark.parametrize("stage", [Stage.SETUP, Stage.SHARE_KEYS, Stage.COLLECT_MASKED_VECTORS])
def test_a_client_that_is_lost_counts_as_no_reply(stage):
    silent = clients()
    silent[3].fails = lambda server_round: "times out"
    plain, plain_metrics = plain_round(ALL, silent)
    (stepped, metrics), _ = secure_round(ALL, lost={stage: (3,)})
    assert np.abs(weights(stepped) - weights(plain)).max() <= 5 * STEP
    assert metrics["sampling-failures"] == plain_metrics["sampling-failures"] == 1


def test_a_client_that_is_lost_after_its_reply_is_in_the_sum():
    plain, _ = plain_round(ALL)
    (stepped, metrics), _ = secure_round(ALL, lost={Stage.UNMASK: (3,)})
    assert np.abs(weights(stepped) - weights(plain)).max() <= 5 * STEP
    assert metrics["sampling-failures"] == 0


@pytest.mark.parametrize("stage", [Stage.SETUP, Stage.COLLECT_MASKED_VECTORS])
def test_with_too_few_clients_nothing_changes(stage):
    (stepped, metrics), _ = secure_round(ALL, lost={stage: (0, 1, 2, 3)})
    assert stepped is None
    assert metrics["sampling-failures"] == 5


def test_a_client_whose_update_is_not_finite_counts_as_no_reply():
    several = clients()
    several[2].train = lambda arrays, server_round: {"w": np.array([np.nan, 0.0, 0.0])}
    plain, _ = plain_round(ALL, several)
    (stepped, metrics), _ = secure_round(ALL, several)
    assert np.abs(weights(stepped) - weights(plain)).max() <= 5 * STEP
    assert metrics["sampling-failures"] == 1


def without_norm(content):
    del content[RECORD]


def with_negative_norm(content):
    content[RECORD] = MetricRecord({"norm": -1.0, "num-examples": 1.0, "shrink": 1.0})


def with_another_shape(content):
    masked = content[RECORD_KEY_CONFIGS]
    masked[Key.MASKED_PARAMETERS] = masked[Key.MASKED_PARAMETERS][:1]


def with_a_huge_norm(content):
    content[RECORD] = MetricRecord({"norm": 1e300, "num-examples": 1e8, "shrink": 1.0})


def with_garbage(content):
    masked = content[RECORD_KEY_CONFIGS]
    masked[Key.MASKED_PARAMETERS] = [b"garbage" for _ in masked[Key.MASKED_PARAMETERS]]


def with_nothing(content):
    content.clear()


@pytest.mark.parametrize(
    "change",
    [without_norm, with_negative_norm, with_a_huge_norm, with_another_shape, with_garbage, with_nothing],
)
def test_a_malformed_reply_is_no_reply_of_that_client_and_of_nobody_else(change, caplog):
    """SecAgg+ can do without a client that is lost while it trains."""

    def spoil(place, content):
        if place == 3:
            change(content)

    silent = clients()
    silent[3].fails = lambda server_round: "times out"
    plain, _ = plain_round(ALL, silent)
    with caplog.at_level(logging.WARNING, "flwr.sortition"):
        (stepped, metrics), _ = secure_round(ALL, spoil=spoil)
    assert np.abs(weights(stepped) - weights(plain)).max() <= 5 * STEP
    assert (metrics["sampling-replies"], metrics["sampling-refused"]) == (4, 1)
    assert caplog.text.count("What name:client-3 returned counts as no reply: its masked reply") == 1


def test_a_product_that_does_not_fit_is_made_shorter_and_named(caplog):
    several = clients()
    several[4].train = lambda arrays, server_round: {"w": arrays["w"] + np.array([100.0, 50.0, 0.0])}
    with caplog.at_level(logging.WARNING, "flwr.sortition"):
        (stepped, _), _ = secure_round(ALL, several)
    others = sum(n * 0.5 * (t - np.array(START)) for t, n in zip(TARGETS[:4], SIZES[:4], strict=True)) / 20
    assert np.abs(weights(stepped) - START - others - [8.0, 4.0, 0.0]).max() <= 5 * STEP
    assert "client-4 was multiplied by 0.2 " in caplog.text


def test_buffers_and_counters_are_averaged_and_do_not_count_towards_the_norm():
    """As without secure aggregation. A counter has no dimensions, which Flower's workflow can't add up."""
    start = ArrayRecord(
        {
            "w": Array(np.array(START)),
            "norm.running_var": Array(np.ones(2)),
            "norm.num_batches_tracked": Array(np.array(3)),
        }
    )

    def train(arrays, server_round):
        return {
            "w": arrays["w"] + 1.0,
            "norm.running_var": arrays["norm.running_var"] + 2.0,
            "norm.num_batches_tracked": arrays["norm.num_batches_tracked"] + 4,
        }

    for _, cohort in cohorts("fixed_size", P, 2):
        several = clients(train=train)
        plain, secure = strategy_for(cohort), strategy_for(cohort, secure_aggregation=True)
        expected, metrics = one_round(plain, federation(several), start)
        stepped, secure_metrics = one_round(secure, SecureGrid(federation(several).nodes), start)
        for key, array in expected.items():
            assert np.abs(stepped[key].numpy() - array.numpy()).max() <= 4 * STEP, key
        assert secure.sampler.heard == pytest.approx(plain.sampler.heard, rel=1e-12, nan_ok=True)
        assert secure_metrics["sampling-variance-ratio"] == pytest.approx(metrics["sampling-variance-ratio"])


def test_a_pairwise_mask_has_fewer_than_29_bits():
    """Flower folds the 44 letters of a key into 32 bits, of 7 each: docs/reference/private-federations.md."""
    letters = np.frombuffer(
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=", dtype=np.uint8
    )
    rng = np.random.default_rng(0)
    for _ in range(20):
        key = rng.choice(letters, 44)
        folded = np.bitwise_xor.reduce(key.reshape(11, 4), axis=0)
        assert folded.max() < 128
        same = pseudo_rand_gen(folded.tobytes(), 2**32, [(4,)])[0]
        assert np.array_equal(same, pseudo_rand_gen(key.tobytes(), 2**32, [(4,)])[0])


def test_without_the_mods_the_log_says_which_are_needed_and_who_failed(caplog):
    class Bare(SecureGrid):
        """The ClientApp reads the model, which is not in the first message of SecAgg+."""

        def _reply(self, message):
            if message.metadata.message_type == MessageType.TRAIN:
                return Message(Error(CLIENT_APP_RAISED, "Traceback\nKeyError: 'arrays'"), reply_to=message)
            return super()._reply(message)

    strategy, grid = strategy_for(ALL, secure_aggregation=True), Bare(federation(clients()).nodes)
    with caplog.at_level(logging.INFO, "flwr.sortition"):
        for server_round in (1, 2):
            stepped, _ = one_round(strategy, grid, model(*START), server_round)
            assert stepped is None
    assert caplog.messages.count("\t> No reply from name:client-3: KeyError: 'arrays'") == 2
    assert caplog.text.count("needs ClientApp(mods=[secaggplus_mod, weigh_update])") == 1


def test_who_is_late_is_named(caplog):
    with caplog.at_level(logging.INFO, "flwr.sortition"):
        secure_round(ALL, lost={Stage.SETUP: (1,), Stage.COLLECT_MASKED_VECTORS: (3,)})
    late = [line for line in caplog.messages if "No reply" in line]
    assert late == ["\t> No reply from name:client-1, name:client-3: not in time"]


def test_what_is_refused():
    with pytest.raises(ConfigurationError, match="memory can't be used with secure_aggregation"):
        AdaptiveSampling(FedAvg(), cohort_size=2, memory=True, secure_aggregation=True)
    with pytest.raises(ConfigurationError, match=r"secure_aggregation must be .* got 'yes'"):
        AdaptiveSampling(FedAvg(), cohort_size=2, secure_aggregation="yes")
    small = SecAggPlusWorkflow(1.0, 0.5, quantization_range=2**22, modulus_range=2**24)
    strategy = strategy_for(ALL, secure_aggregation=small)
    grid = SecureGrid(federation(clients()).nodes)
    with pytest.raises(ConfigurationError, match=r"can add up 4 clients .* got a cohort of 5"):
        strategy.configure_train(1, model(*START), ConfigRecord(), grid)
    unknown = AdaptiveSampling(FedAvg(), cohort_size=5, secure_aggregation=True)
    with pytest.raises(ConfigurationError, match="needs data sizes before the first round"):
        unknown.configure_train(1, model(*START), ConfigRecord(), grid)
