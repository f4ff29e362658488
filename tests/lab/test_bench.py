"""``sortition bench``: what it measures is there, and what it says is so. No time is asserted."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sortition import ConfigurationError
from sortition.cli import commands
from sortition.lab import bench
from sortition.lab.contestants import CONTESTANTS, ORACLES


@pytest.mark.parametrize("regime", bench.REGIMES)
def test_every_field_is_measured(regime: bench.Regime) -> None:
    measurement = bench.measure(20, 3, 4, regime)
    values = asdict(measurement)
    assert values.pop("sampler") == "adaptive-osmd"
    assert values.pop("regime") == regime
    assert all(math.isfinite(value) and value > 0.0 for value in values.values()), values
    assert measurement.round_median == measurement.draw_median + measurement.observe_median
    if regime == "adapted":
        assert measurement.clients_seen == 20
        assert measurement.share_adapted >= bench.MOVED


def test_what_is_too_big_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CHOICE_UP_TO", 10)
    monkeypatch.setattr(bench, "DENSE_UP_TO", 10)
    monkeypatch.setattr(bench, "ALL_SEEN_UP_TO", 10)
    measurement = bench.measure(200, 3, 6, "adapted")
    assert math.isnan(measurement.choice_median)
    assert math.isnan(measurement.dense_median)
    assert measurement.clients_seen < 200
    assert measurement.share_adapted >= bench.MOVED


def test_adapted_means_adapted(monkeypatch: pytest.MonkeyPatch) -> None:
    """That every client was seen does not say how much was learnt."""
    monkeypatch.setattr(bench, "RATE_SCALES", (1e-9,))
    with pytest.raises(ConfigurationError, match="rounds"):
        bench.measure(50, 5, 2, "adapted")


@pytest.mark.parametrize("regime", bench.REGIMES)
@pytest.mark.parametrize("sampler", CONTESTANTS)
def test_every_sampler_is_measured(sampler: str, regime: bench.Regime) -> None:
    measurement = bench.measure(
        30, 3, 20, regime, sampler, "fixed_size" if sampler == "avare" else "with_replacement"
    )
    assert measurement.sampler == sampler
    assert measurement.round_median > 0.0
    assert measurement.choice_median > 0.0
    assert math.isnan(measurement.dense_median) is (sampler != "adaptive-osmd")
    assert 0 < measurement.clients_seen <= 30
    assert 0.0 < measurement.share_of_seen <= 1.0 + 1e-9
    if regime == "adapted" and sampler not in ORACLES:
        assert measurement.clients_seen == 30


def test_a_sampler_that_keeps_all_clients_has_a_limit() -> None:
    with pytest.raises(ConfigurationError, match="num_clients"):
        bench.measure(10**8, 3, 2, "fresh", "optimal")
    with pytest.raises(ConfigurationError, match="sampler"):
        bench.measure(10, 3, 2, "fresh", "roulette")


def test_the_command_names_the_sampler() -> None:
    arguments = ["--sampler", "avare", "--clients", "20", "--cohort", "3", "--rounds", "3"]
    result = CliRunner().invoke(commands.app, ["bench", *arguments])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("avare: ")


def test_the_command_says_who_has_one_design_only() -> None:
    arguments = ["--sampler", "k-vib", "--design", "fixed_size", "--clients", "20", "--cohort", "3"]
    result = CliRunner().invoke(commands.app, ["bench", *arguments, "--rounds", "3"])
    assert result.stdout.startswith("k-vib: 3 clients drawn a round (independent, its only design), 3 rounds")


def test_the_command_writes_standard_json(tmp_path: Path) -> None:
    """Two federations, each in a process of its own; the larger one is compared with nothing dense."""
    path = tmp_path / "bench.json"
    arguments = ["--clients", "20,2e5", "--cohort", "3", "--rounds", "3", "--json", str(path)]
    result = CliRunner().invoke(commands.app, ["bench", *arguments])
    assert result.exit_code == 0, result.output
    assert "3 clients drawn a round" in result.stdout

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    small, large = json.loads(path.read_text(), parse_constant=refuse)
    assert (small["num_clients"], large["num_clients"]) == (20, 200_000)
    assert small["dense_median"] > 0.0
    assert large["dense_median"] is None
    assert small.keys() == large.keys() == {*asdict(bench.measure(20, 3, 1, "fresh")), "round_median"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--clients", "many"], ["--clients", "from 2 to 1e+15", "'many'"]),
        (["--clients", "1e3,1"], ["--clients", "from 2 to 1e+15", "'1'"]),
        (["--clients", "2.5"], ["--clients", "whole", "'2.5'"]),
        (["--clients", "1e16"], ["--clients", "from 2 to 1e+15", "'1e16'"]),
        (["--cohort", "0"], ["--cohort", "at least 1", "'0'"]),
        (["--rounds", "x"], ["--rounds", "at least 1", "'x'"]),
        (["--sampler", "avari"], ["--sampler", "'avari'", "avare"]),
        (["--clients", "1e8", "--sampler", "optimal"], ["--clients must be", "optimal", "1e+08"]),
        (["--regime", "tired"], ["--regime", "fresh, adapted", "'tired'"]),
        (["--json", "/no/such/place/x.json"], ["--json", "directory", "/no/such/place/x.json"]),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments: list[str], said: list[str]) -> None:
    result = CliRunner().invoke(commands.app, ["bench", *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    for part in said:
        assert part in line
