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


@pytest.mark.parametrize("regime", bench.REGIMES)
def test_every_field_is_measured(regime: bench.Regime) -> None:
    measurement = bench.measure(20, 3, 4, regime)
    values = asdict(measurement)
    assert values.pop("regime") == regime
    assert all(math.isfinite(value) and value > 0.0 for value in values.values()), values
    assert measurement.round_median == measurement.draw_median + measurement.observe_median
    if regime == "adapted":
        assert measurement.clients_seen == 20
        assert measurement.share_adapted >= bench.MOVED


def test_what_is_too_big_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CHOICE_UP_TO", 10)
    monkeypatch.setattr(bench, "DENSE_UP_TO", 10)
    monkeypatch.setattr(bench, "ALL_MET_UP_TO", 10)
    measurement = bench.measure(200, 3, 6, "adapted")
    assert math.isnan(measurement.choice_median)
    assert math.isnan(measurement.dense_median)
    assert measurement.clients_seen < 200
    assert measurement.share_adapted >= bench.MOVED


def test_adapted_means_adapted(monkeypatch: pytest.MonkeyPatch) -> None:
    """That everybody was met says nothing of what was learnt."""
    monkeypatch.setattr(bench, "RATE_SCALES", (1e-9,))
    with pytest.raises(ConfigurationError, match=r"rounds must be enough to move 0.5 .* of 50 clients"):
        bench.measure(50, 5, 2, "adapted")


def test_the_command_writes_json_that_anybody_can_read(tmp_path: Path) -> None:
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
