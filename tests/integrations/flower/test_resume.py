"""A run resumed at any round equals the unbroken one."""

from __future__ import annotations

import io

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi

from sortition import StateError, UniformSampler
from sortition.integrations.flower import AdaptiveSampling
from tests.integrations.flower.fake_grid import Client, federation, model, weights

ROUNDS = 6

INNER = {
    "FedAvg": lambda: FedAvg(fraction_evaluate=0.0),
    "FedProx": lambda: FedProx(fraction_evaluate=0.0, proximal_mu=0.1),
    "FedAdam": lambda: FedAdam(fraction_evaluate=0.0),
    "FedYogi": lambda: FedYogi(fraction_evaluate=0.0),
    "FedAdagrad": lambda: FedAdagrad(fraction_evaluate=0.0),
    "FedAvgM": lambda: FedAvgM(fraction_evaluate=0.0, server_momentum=0.9, server_learning_rate=0.7),
}


def clients(lost_round=0):
    """Updates that depend on the round, so that a wrong number shows; one round without any reply."""
    rng = np.random.default_rng(0)

    def client(target, size):
        def train(arrays, server_round):
            return {"w": arrays["w"] + 0.3 * (target - arrays["w"]) + 0.1 * np.sin(server_round * target)}

        lost = lambda server_round: "times out" if server_round == lost_round else None  # noqa: E731
        return Client(target, size, train=train, fails=lost)

    return [client(t, int(s)) for t, s in zip(rng.normal(size=12), rng.integers(1, 50, size=12), strict=True)]


def run(strategy, num_rounds=ROUNDS, first_node=100, evaluated=None, lost_round=0):
    def evaluate(server_round, arrays):
        if evaluated is not None:
            evaluated[server_round] = (weights(arrays).copy(), strategy.state_dict())

    grid = federation(clients(lost_round), first_node=first_node)
    return strategy.start(grid, model(0.0, 1.0), num_rounds=num_rounds, evaluate_fn=evaluate)


def through_a_file(state):
    """What comes back is plain arrays: nothing that had to be pickled."""
    buffer = io.BytesIO()
    np.savez(buffer, **state)
    buffer.seek(0)
    with np.load(buffer, allow_pickle=False) as saved:
        return dict(saved)


@pytest.mark.parametrize("lost_round", [0, 3])
@pytest.mark.parametrize("name", INNER)
def test_resumed_at_any_round_equals_the_unbroken_run(name, lost_round):
    def build():
        return AdaptiveSampling(INNER[name](), cohort_size=4, seed=5)

    unbroken: dict = {}
    whole = run(build(), evaluated=unbroken, lost_round=lost_round)
    for stop in range(1, ROUNDS):
        resumed = build()
        resumed.load_state_dict(through_a_file(unbroken[stop][1]))
        seen: dict = {}
        result = run(resumed, first_node=5000 + stop, evaluated=seen, lost_round=lost_round)
        assert sorted(seen) == list(range(stop, ROUNDS + 1))
        for server_round, (arrays, _) in seen.items():
            np.testing.assert_allclose(arrays, unbroken[server_round][0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(weights(result.arrays), weights(whole.arrays), rtol=0, atol=1e-12)
        assert sorted(result.train_metrics_clientapp) == list(range(1, ROUNDS + 1))
        for server_round, metrics in result.train_metrics_clientapp.items():
            assert dict(metrics) == pytest.approx(
                dict(whole.train_metrics_clientapp[server_round]), abs=1e-12
            )


def test_momentum_and_moments_really_matter():
    """The test above would fail if the inner strategy's state were lost."""
    for name in ("FedAdam", "FedYogi", "FedAdagrad", "FedAvgM"):
        saved: dict = {}
        strategy = AdaptiveSampling(INNER[name](), cohort_size=4, seed=5)
        whole = run(strategy, evaluated=saved)
        state = {**saved[3][1], "inner_attributes": "{}"}
        forgetful = AdaptiveSampling(INNER[name](), cohort_size=4, seed=5)
        forgetful.load_state_dict(state)
        assert not np.allclose(weights(run(forgetful).arrays), weights(whole.arrays), rtol=0, atol=1e-6)


def test_a_finished_run_that_is_resumed_has_nothing_left_to_do():
    strategy = AdaptiveSampling(INNER["FedAvg"](), cohort_size=4)
    whole = run(strategy)
    again = AdaptiveSampling(INNER["FedAvg"](), cohort_size=4)
    again.load_state_dict(strategy.state_dict())
    result = run(again)
    np.testing.assert_array_equal(weights(result.arrays), weights(whole.arrays))
    assert result == whole


def test_starting_twice_is_two_runs_as_with_any_strategy():
    strategy = AdaptiveSampling(INNER["FedAvg"](), cohort_size=4)
    assert sorted(run(strategy, 2).train_metrics_clientapp) == [1, 2]
    assert sorted(run(strategy, 3).train_metrics_clientapp) == [1, 2, 3]


def test_settings_of_inner_may_change_between_the_runs():
    strategy = AdaptiveSampling(FedAdam(fraction_evaluate=0.0, eta=0.1), cohort_size=4)
    run(strategy, 2)
    slower = FedAdam(fraction_evaluate=0.0, eta=0.01)
    resumed = AdaptiveSampling(slower, cohort_size=4)
    resumed.load_state_dict(strategy.state_dict())
    assert slower.eta == 0.01
    assert set(slower.m_t) == {"w"}


def test_a_setting_that_changed_during_the_run_is_restored():
    class Decaying(FedAvgM):
        def aggregate_train(self, server_round, replies):
            self.server_learning_rate *= 0.9
            return super().aggregate_train(server_round, replies)

    def build():
        inner = Decaying(fraction_evaluate=0.0, server_learning_rate=0.5)
        return AdaptiveSampling(inner, cohort_size=4)

    strategy, resumed = build(), build()
    run(strategy, 3)
    resumed.load_state_dict(strategy.state_dict())
    assert resumed.inner.server_learning_rate == strategy.inner.server_learning_rate < 0.5


def test_a_sampler_of_ones_own_is_resumed_too():
    def build():
        sampler = UniformSampler(num_clients=12, cohort_size=4, seed=8)
        return AdaptiveSampling(INNER["FedAvg"](), sampler=sampler)

    saved: dict = {}
    whole = run(build(), evaluated=saved)
    resumed = build()
    resumed.load_state_dict(saved[2][1])
    np.testing.assert_array_equal(weights(run(resumed).arrays), weights(whole.arrays))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kind": "UniformSampler"}, "kind.*UniformSampler"),
        ({"version": 99}, "version.*99"),
        ({"inner": "FedAdam"}, "inner.*FedAdam"),
        ({"inner_attributes": "no json"}, "inner_attributes"),
        ({"identities": '["a", "a"]'}, "identities"),
        ({"metrics": "no json"}, "metrics"),
        ({"metrics": '{"1": {"train": {"loss": "low"}}}'}, "metrics"),
        ({"metrics": '{"one": {}}'}, "metrics"),
        ({"evaluated": -1}, "evaluated"),
        ({"reported_sizes": np.zeros(3)}, "reported_sizes"),
        ({"model_keys": '["w", "v"]'}, "model_keys"),
        ({"sampler.kind": "UniformSampler"}, "kind.*EmpiricalBayesSampler"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, named):
    strategy = AdaptiveSampling(INNER["FedAvg"](), cohort_size=4)
    run(strategy, 2)
    fresh = AdaptiveSampling(INNER["FedAvg"](), cohort_size=4)
    with pytest.raises(StateError, match=named):
        fresh.load_state_dict({**strategy.state_dict(), **change})


@pytest.mark.parametrize("with_ledger", [True, False])
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"eta": 0.01}, ["eta was 0.1 and is 0.01"]),
        ({"memory": True}, ["memory was False and is True"]),
        ({"eta": 0.1}, []),
    ],
)
def test_another_setting_or_memory_is_told(changed, told, with_ledger, tmp_path, caplog):
    ledger = tmp_path / "run.db" if with_ledger else None

    def strategy(eta=0.1, **options):
        inner = FedAdam(fraction_evaluate=0.0, eta=eta)
        return AdaptiveSampling(inner, cohort_size=2, ledger=ledger, **options)

    def resumed(**options):
        other = strategy(**options)
        if not with_ledger:
            other.load_state_dict(state)
        return other.start(federation([Client() for _ in range(3)]), model(0.0), num_rounds=4)

    first = strategy()
    first.start(federation([Client() for _ in range(3)]), model(0.0), num_rounds=2)
    state = first.state_dict()
    caplog.clear()
    resumed(**changed)
    said = [each.getMessage() for each in caplog.records if "another setting" in each.getMessage()]
    assert said == [f"This run goes on with another setting: {change}" for change in told]


def test_the_log_says_at_the_start_who_draws_how_many(tmp_path, caplog):
    for _ in range(2):  # begun, and resumed
        caplog.clear()
        strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=2, ledger=tmp_path / "run.db")
        with caplog.at_level("INFO", logger="flwr"):
            strategy.start(federation([Client() for _ in range(3)]), model(0.0), num_rounds=1)
        assert "Adaptive sampling: default sampler, 2 clients a round" in caplog.text
