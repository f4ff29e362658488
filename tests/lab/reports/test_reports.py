"""Rows to text: every number arrives, and what was not reached says so."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rich.console import Console

from sortition.lab.compare import Comparison, Row
from sortition.lab.reports.export import comparison_json
from sortition.lab.reports.table import comparison_table


@pytest.fixture
def comparison() -> Comparison:
    curve = np.array([2.0, 1.0])
    return Comparison(
        cohort_size=5,
        num_rounds=700,
        repeats=3,
        design="with_replacement",
        seed=0,
        target_loss=0.4321,
        rows=(
            Row("uniform", 560, 1.0, 0.4, 0.02, 9.876, curve, curve),
            Row("lucky", 280, 0.5, 0.3, 0.01, 1.5, curve, curve),
            Row("lost", None, None, 1.7, 0.9, 30.0, curve, curve),
        ),
    )


def test_table_fits_a_narrow_terminal(comparison):
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture:
        console.print(comparison_table(comparison))
    lines = capture.get().splitlines()
    assert max(len(line) for line in lines) <= 80
    assert "loss 0.432" in lines[2]
    cells = {
        line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:-1]] for line in lines[4:7]
    }
    assert cells == {
        "uniform": ["560", "x1.00", "0.400 ± 0.020", "x9.88"],
        "lucky": ["280", "x0.50", "0.300 ± 0.010", "x1.50"],
        "lost": ["> 700", "-", "1.700 ± 0.900", "x30.00"],
    }


def test_json_keeps_everything(comparison):
    stored = json.loads(comparison_json(comparison))
    assert stored["target_loss"] == 0.4321
    assert stored["num_rounds"] == 700
    assert [row["name"] for row in stored["rows"]] == ["uniform", "lucky", "lost"]
    assert stored["rows"][1]["losses"] == [2.0, 1.0]
    assert stored["rows"][2]["rounds_to_target"] is None
