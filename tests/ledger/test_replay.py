"""What a record knows of its sampler: how to build it, experts of a portfolio, classes of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    EmpiricalBayesSampler,
    Guard,
    LedgerError,
    PortfolioSampler,
    ProportionalSampler,
    UniformSampler,
    VRBSampler,
)
from sortition.cli.commands import app
from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.replay import DEEPEST, MOST_EXPERTS, maker_from, recorded_settings
from sortition.samplers.base import BaseSampler
from tests.ledger.helpers import (
    CLIENTS,
    COHORT_SIZE,
    OwnSampler,
    Strange,
    crash,
    guarded,
    norms_of,
    own,
    play,
    recorded,
    state_bytes,
)

SIZES = {"num_clients": 30, "cohort_size": 4}
WEIGHTS = np.arange(1.0, 31.0) / np.arange(1.0, 31.0).sum()


def portfolio(floor_decay: float = 0.9, *inner: BaseSampler, **settings: Any) -> PortfolioSampler:
    return PortfolioSampler(
        experts=[ProportionalSampler(**SIZES), AvareSampler(**SIZES, floor_decay=floor_decay), *inner],
        **settings,
    )


def nested() -> PortfolioSampler:
    """Experts with arrays and defences of their own, one of them a portfolio."""
    common = {**SIZES, "client_weights": WEIGHTS}
    inner = PortfolioSampler(
        experts=[
            VRBSampler(**common, prior=WEIGHTS[::-1]),
            EmpiricalBayesSampler(**common, prior=WEIGHTS[::-1], guard=Guard(fence=5.0)),
        ],
        seed=3,
    )
    return PortfolioSampler(experts=(UniformSampler(**common), inner), meta_rate=0.5, guard=Guard(fence=6.0))


def lie(run: Any, rounds: int) -> None:
    """Client 7 lies by a million."""
    for _ in range(rounds):
        cohort = run.draw()
        run.observe(cohort, norms_of(cohort) * np.where(cohort.clients == 7, 1e6, 1.0))


def sortition(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


@pytest.mark.parametrize("make", [portfolio, nested])
def test_a_portfolio_is_built_again_from_its_record(path: Path, make: Any) -> None:
    with open_run(path, make, snapshot_every=10) as run:
        lie(run, 25)
        expected, suspects = state_bytes(run), run.suspects()
    assert [suspect.client for suspect in suspects] == [7]
    assert verify_run(path).replayed
    with read_run(path) as record:
        assert state_bytes(record.replay()) == expected
        assert record.replay().suspects() == suspects


def test_the_commands_know_it(path: Path) -> None:
    with open_run(path, nested) as run:
        lie(run, 25)
    assert "every cohort was drawn again" in sortition("runs", "verify", path).stdout
    shown = sortition("runs", "show", path).stdout
    assert "reports above the guard's clip: 7" in shown
    for line in ("expert 0 UniformSampler", "expert 1 PortfolioSampler"):
        assert line in " ".join(shown.split())
    for line in ("expert 1.0 VRBSampler", "expert 1.1 EmpiricalBayesSampler"):
        assert line in " ".join(shown.split())
    assert sortition("report", path).exit_code == 0
    page = path.with_name("run.db.html").read_text()
    assert "expert 1.1" in page
    assert "only the program" not in page


def test_experts_are_listed_with_their_settings(path: Path) -> None:
    with open_run(path, portfolio) as run:
        play(run, 1)
    shown = " ".join(sortition("runs", "show", path).stdout.split())
    first, _, second = shown.partition("expert 0 ")[2].partition("expert 1 ")
    assert first == "ProportionalSampler "
    assert second.startswith("AvareSampler: floor_offset ")
    assert "floor_decay 0.9" in second


class OwnExpert(UniformSampler):
    """A user's own."""


@pytest.mark.parametrize("deep", [False, True])
def test_an_expert_that_the_library_can_not_build(deep: bool) -> None:
    inner: BaseSampler = OwnExpert(**SIZES)
    if deep:
        inner = PortfolioSampler(experts=[inner])
    found = recorded_settings(portfolio(0.9, inner))
    assert found == {"sampler": "PortfolioSampler", "rebuildable": False}
    assert maker_from(found) is None


def within_portfolios(levels: int) -> BaseSampler:
    sampler: BaseSampler = UniformSampler(**SIZES)
    for _ in range(levels):
        sampler = PortfolioSampler(experts=[sampler])
    return sampler


def test_how_deep_portfolios_may_lie_in_each_other() -> None:
    make = maker_from(recorded_settings(within_portfolios(DEEPEST)))
    assert make is not None
    assert state_bytes(make()) == state_bytes(within_portfolios(DEEPEST))
    assert not recorded_settings(within_portfolios(DEEPEST + 1))["rebuildable"]


def test_how_many_experts_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sortition.ledger.replay.MOST_EXPERTS", 4)
    four = portfolio(0.9, PortfolioSampler(experts=[UniformSampler(**SIZES)]))
    make = maker_from(recorded_settings(four))
    assert make is not None
    assert state_bytes(make()) == state_bytes(four)
    five = portfolio(0.9, PortfolioSampler(experts=[UniformSampler(**SIZES), UniformSampler(**SIZES)]))
    assert recorded_settings(five) == {"sampler": "PortfolioSampler", "rebuildable": False}


class OwnGuard(Guard):
    """A user's own."""


def test_a_defence_that_the_library_can_not_build() -> None:
    assert recorded_settings(portfolio(guard=OwnGuard())) == {
        "sampler": "PortfolioSampler",
        "rebuildable": False,
    }


def hostile(**settings: Any) -> dict[str, Any]:
    given = {f"setting.{name}": value for name, value in settings.items()}
    return {"sampler": "PortfolioSampler", "rebuildable": True, **given}


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        ({"experts.0": "os.system"}, "sampler .*'os.system'"),
        ({"experts.0": "LedgerError"}, "sampler .*'LedgerError'"),
        ({"experts.0": None}, "sampler .*None"),
        ({"experts.0.num_clients": 9}, "sampler .*None"),
        ({"experts.1": "UniformSampler"}, r"experts .*\['1'\]"),
        ({"experts" + ".0.experts" * 100_000 + ".0": "UniformSampler"}, "sampler .*None"),
        ({"experts.0" + ".experts.0" * i: "PortfolioSampler" for i in range(900)}, f"experts .*{DEEPEST}"),
        ({"guard": "object " + "[" * 200_000}, "guard"),
        ({"guard": 'object ["Guard", {"lies": 1}]'}, "guard"),
        ({"guard": 'object ["Guard", {"fence": -1.0}]'}, "guard"),
        ({"guard": "object 3"}, "guard"),
        ({"guard": 'object ["system", {}]'}, "guard .*'system'"),
        ({"guard": "object [7, {}]"}, "guard .*7"),
        ({"guard": 'object ["Cohort", {"clients": [9]}]'}, "guard .*'Cohort'"),
        ({"guard": 'object ["Guard", {"fence": 1' + "0" * 400 + "}]"}, "guard"),
        (
            {f"experts.{place}": "UniformSampler" for place in range(MOST_EXPERTS + 1)},
            f"experts .*{MOST_EXPERTS + 1}",
        ),
        (
            {
                "experts.0": "PortfolioSampler",
                **{f"experts.0.experts.{place}": "UniformSampler" for place in range(MOST_EXPERTS)},
            },
            f"experts .*{MOST_EXPERTS + 1}",
        ),
    ],
)
def test_settings_that_nobody_wrote(settings: dict[str, Any], argument: str) -> None:
    with pytest.raises(LedgerError, match=argument):
        maker_from(hostile(**settings))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("DoublingOSMDSampler", {"restart": np.zeros(2)}),
        ("UniformSampler", {"design": np.zeros((2, 2))}),
        ("KVibSampler", {"num_rounds": 3, "design": np.zeros(2)}),
        ("AdaptiveOSMDSampler", {"num_rounds": 10**400}),
        ("AdaptiveOSMDSampler", {"num_rounds": [1]}),
        ("UniformSampler", {"guard": {"fence": 1}}),
        ("UniformSampler", {"self": 1}),
    ],
)
def test_settings_that_build_nothing(kind: str, settings: dict[str, Any]) -> None:
    make = maker_from({**hostile(**SIZES, **settings), "sampler": kind})
    assert make is not None
    with pytest.raises(LedgerError, match="settings"):
        make()


@pytest.mark.parametrize(("kind", "own"), [("OptimalSampler", {}), ("KVibSampler", {"num_rounds": 3})])
@pytest.mark.parametrize("clients", [2**25, 2**40, 2**53])
def test_a_recipe_for_more_clients_than_memory(kind: str, own: dict[str, int], clients: int) -> None:
    make = maker_from({**hostile(num_clients=clients, cohort_size=2, **own), "sampler": kind})
    assert make is not None
    with pytest.raises(LedgerError, match="num_clients"):
        make()


@pytest.mark.parametrize("rebuildable", [np.ones(2), np.zeros(0), "yes", 1, None])
def test_only_true_is_rebuildable(rebuildable: Any) -> None:
    assert maker_from({**hostile(), "rebuildable": rebuildable}) is None


@pytest.mark.parametrize("experts", [7, "UniformSampler", None, np.zeros(2)])
def test_experts_that_are_no_samplers(experts: Any) -> None:
    make = maker_from(hostile(experts=experts))
    assert make is not None
    with pytest.raises(LedgerError, match="settings"):
        make()


def test_a_run_without_the_settings_of_its_sampler(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        unknown = {"sampler": "PortfolioSampler", "rebuildable": False}
        patch.setattr("sortition.ledger.recorded.recorded_settings", lambda _: unknown)
        with open_run(path, portfolio) as run:
            play(run, 3)
            expected = state_bytes(run)
    assert not verify_run(path).replayed
    assert verify_run(path, portfolio).replayed
    found = sortition("runs", "verify", path)
    assert found.exit_code == 0
    assert "PortfolioSampler" in found.stdout
    assert "expert 1" in sortition("runs", "show", path).stdout
    with open_run(path, portfolio) as run:
        assert state_bytes(run) == expected


@pytest.mark.parametrize(
    ("built", "message"),
    [
        (lambda: portfolio(0.8), r"expert 1 \(AvareSampler\): floor_decay = 0\.9, got 0\.8"),
        (lambda: portfolio(0.8, meta_rate=2.0), "meta_rate = .*, got 2.0; expert 1 .*got 0.8"),
        (
            lambda: portfolio(0.9, UniformSampler(**SIZES)),
            "experts = ProportionalSampler AvareSampler, got ProportionalSampler AvareSampler UniformSampler",
        ),
    ],
)
def test_experts_with_other_settings(path: Path, built: Any, message: str) -> None:
    open_run(path, portfolio).close()
    with pytest.raises(LedgerError, match=f"make_sampler .*{message}$"):
        open_run(path, built)


def test_experts_of_experts_with_other_settings(path: Path) -> None:
    run = open_run(path, lambda: PortfolioSampler(experts=[portfolio(1.0)]))
    crash(run)
    message = r"expert 0 \(PortfolioSampler\): expert 1 \(AvareSampler\): floor_decay = 1.0, got 0.7$"
    with pytest.raises(LedgerError, match=message):
        open_run(path, lambda: PortfolioSampler(experts=[portfolio(0.7)]))


# Samplers that the library cannot build ---------------------------------------------------------------


def foreign() -> Strange:
    return Strange(guarded())


@pytest.mark.parametrize("make_own", [foreign, own])
def test_verify_says_when_nothing_was_replayed(path: Path, make_own: Callable[[], Any]) -> None:
    """Status 0: what can be checked without the sampler is as it was; docs/reference/ledger.md says so."""
    with open_run(path, make_own) as run:
        play(run, 2)
    found = CliRunner().invoke(app, ["runs", "verify", str(path)])
    assert found.exit_code == 0
    first, second = found.output.splitlines()
    assert first.endswith("5 rows, 2 rounds, 1 snapshot, 0 attachments: all as they were written")
    assert second.startswith("only the checksums were checked: no cohort was drawn again")
    assert f"does not say how to build its {type(make_own()).__name__};" in second
    assert verify_run(path, make_own).replayed


@pytest.mark.parametrize("make_own", [foreign, own])
def test_replay_takes_whoever_builds_it(path: Path, make_own: Callable[[], Any]) -> None:
    with open_run(path, make_own) as run:
        play(run, 3)
        expected = state_bytes(run)
    kind = type(make_own()).__name__
    with read_run(path) as record:
        assert not record.rebuildable
        with pytest.raises(LedgerError, match=f"make_sampler .*{kind}"):
            record.replay()
        assert state_bytes(record.replay(make_own)) == expected


def test_replay_refuses_another_sampler(path: Path) -> None:
    with open_run(path, own) as run:
        play(run, 3)
    with read_run(path) as record, pytest.raises(LedgerError, match=f"cohort_size = {COHORT_SIZE}, got 5"):
        record.replay(lambda: OwnSampler(num_clients=CLIENTS, cohort_size=5))


# Samplers with other settings -------------------------------------------------------------------------


def other(**settings: Any) -> AdaptiveOSMDSampler:
    usual = {"num_clients": CLIENTS, "cohort_size": COHORT_SIZE, "num_rounds": 50, "rate_scale": 30.0}
    return AdaptiveOSMDSampler(**{**usual, **settings})


@pytest.mark.parametrize(
    ("begun", "built", "message"),
    [
        ({}, {"cohort_size": 5}, "cohort_size = 4, got 5"),
        ({}, {"cohort_size": 5, "num_clients": 31}, "num_clients = 30, got 31; cohort_size = 4, got 5"),
        ({"guard": Guard(fence=5.0)}, {"guard": Guard(fence=6.0)}, "guard.fence = 5.0, got 6.0"),
        ({"guard": None}, {"guard": Guard()}, r"guard = none, got Guard\(.*\)"),
    ],
)
def test_other_settings(path: Path, begun: Any, built: Any, message: str) -> None:
    open_run(path, lambda: other(**begun)).close()
    with pytest.raises(LedgerError, match=f"make_sampler .*{message}$"):
        open_run(path, lambda: other(**built))


def test_another_kind_of_sampler(path: Path) -> None:
    recorded(path, 1)
    with pytest.raises(LedgerError, match=r"make_sampler .*AdaptiveOSMDSampler, got UniformSampler$"):
        open_run(path, lambda: UniformSampler(num_clients=CLIENTS, cohort_size=COHORT_SIZE))
