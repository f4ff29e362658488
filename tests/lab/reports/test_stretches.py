"""Charts with more rounds than points: no round's value is lost, and the page says what a point is."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from sortition import UniformSampler
from sortition.lab.reports.charts import POINTS, WIDE_POINTS, line_chart
from sortition.lab.reports.ledger_page import ledger_page
from sortition.lab.reports.page import Page, picture_svg
from sortition.lab.reports.stretches import points
from sortition.lab.reproduce import Curve
from sortition.ledger import open_run, read_run

ROUNDS = 1001
"""No multiple of a stretch: four rounds to a point, and one in the last."""


def drawn(values: np.ndarray[Any, Any], **options: Any) -> list[dict[str, Any]]:
    chart = line_chart({"a": (np.arange(1, len(values) + 1), values)}, "round", "y", **options)
    return list(chart["data"]["values"])


@pytest.mark.parametrize("log", [False, True])
def test_a_spike_in_any_single_round_is_in_the_band(log):
    for place in (*range(0, ROUNDS, 17), ROUNDS - 1):  # at each place of a stretch, and both ends
        values = np.ones(ROUNDS)
        values[place] = 1e9
        found = drawn(values, log=log)
        highs = [point["high"] for point in found]
        assert highs.count(1e9) == 1
        assert highs.count(1.0) == len(found) - 1
        begin, _, end = found[highs.index(1e9)]["at"].partition(" to ")
        assert int(begin) <= place + 1 <= int(end or begin)


def test_every_blackout_is_in_the_band():
    values = np.ones(20_000)
    starts = range(500, 20_000, 1000)
    for start in starts:
        values[start : start + 29] = 0.0
    found = drawn(values, share=True)
    dark = {round((point["x"] - 500) / 1000) for point in found if point["low"] == 0.0}
    assert dark == set(range(len(starts)))
    assert all(point["high"] == 1.0 for point in found)
    assert found[7] == {
        "sampler": "a",
        "x": 503.0,
        "at": "470 to 536",
        "y": 0.567164,
        "low": 0.0,
        "high": 1.0,
    }
    assert found[-1]["at"] == "19967 to 20000"


def test_few_rounds_are_all_drawn_and_there_is_no_band():
    values = np.arange(1.0, WIDE_POINTS + 1)
    chart = line_chart({"a": (np.arange(WIDE_POINTS), values)}, "round", "y")
    assert [(point["x"], point["y"]) for point in chart["data"]["values"]] == list(
        zip(range(WIDE_POINTS), values, strict=True)
    )
    assert [layer["mark"]["type"] for layer in chart["layer"]] == ["line"]
    assert "description" not in chart


def test_a_band_is_drawn_and_described_where_a_point_is_a_stretch():
    values = np.tile([1.0, 1.0, 4.0], 400)
    mean = line_chart({"a": (np.arange(1200), values)}, "round", "y")
    median = line_chart({"a": (np.arange(1200), values)}, "round", "y", log=True)
    assert [layer["mark"]["type"] for layer in mean["layer"]] == ["area", "line"]
    assert mean["description"] == (
        "Each point stands for 4 rounds: the line is their mean, "
        "the band goes from their least to their largest."
    )
    assert "the line is their median" in median["description"]
    assert mean["data"]["values"][0]["y"] == 1.75
    assert median["data"]["values"][0]["y"] == 1.0
    page = Page("t", "l")
    page.chart(mean)
    assert page.render().count(mean["description"]) == 2  # below the chart, and in it for those who can't see


def test_deviations_of_a_stretch_are_all_in_the_band():
    mean, spread = np.zeros(10 * POINTS), np.full(10 * POINTS, 0.5)
    mean[123], spread[456] = 2.0, 7.0
    found = points(Curve("", "", "a", "", 0.0, np.arange(10.0 * POINTS), mean, spread), POINTS)
    assert len(found) == POINTS
    assert (found[12]["y"], found[12]["low"], found[12]["high"]) == (0.2, -0.5, 2.5)
    assert (found[45]["y"], found[45]["low"], found[45]["high"]) == (0.0, -7.0, 7.0)
    assert {(point["low"], point["high"]) for point in found} == {(-0.5, 0.5), (-0.5, 2.5), (-7.0, 7.0)}


def test_a_round_without_a_number_is_left_out_of_its_stretch():
    values = np.ones(1200)
    values[:4], values[5] = np.nan, np.nan
    found = drawn(values)
    assert len(found) == WIDE_POINTS - 1  # nothing is known of the first
    assert found[0]["at"] == "5 to 8"
    assert found[0]["y"] == 1.0


def test_the_largest_number_there_is_can_be_drawn():
    chart = line_chart({"a": (np.arange(1200), np.full(1200, 1.7e308))}, "round", "y", log=True)
    json.dumps(chart, allow_nan=False)
    assert {point["y"] for point in chart["data"]["values"]} == {1e300}


def test_lines_across_many_decades_are_at_powers_of_ten_only():
    many = line_chart({"a": ([1, 2], [1.0, 1e9])}, "x", "y", log=True)
    few = line_chart({"a": ([1, 2], [1.0, 9.0])}, "x", "y", log=True)
    shown = [
        len(re.findall(r'<line [^>]*stroke="#eeeeee"[^>]*opacity="1"', picture_svg(chart).decode()))
        for chart in (many, few)
    ]
    hidden = re.findall(r'<line [^>]*stroke="#eeeeee"[^>]*opacity="0"', picture_svg(many).decode())
    assert len(hidden) > 50
    assert 0 < shown[0] < 30
    assert "axis" not in few["layer"][0]["encoding"]["y"]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("ledger") / "run.db"

    def make() -> UniformSampler:
        return UniformSampler(num_clients=5, cohort_size=5, seed=1)

    with open_run(path, make) as run:
        for place in range(2 * WIDE_POINTS):
            cohort = run.draw()
            norm = {100: np.nan, 201: 1e9}.get(place, 1.5)
            run.observe(cohort, np.full(len(cohort), norm))
    with read_run(path) as record:
        return ledger_page(record)


def test_no_round_is_lost_on_the_ledger_page(page):
    specs = re.search(r"const specs = (.*);\n", page)
    assert specs is not None
    _, replies, norms = (spec["data"]["values"] for spec in json.loads(specs[1]))
    assert [(p["at"], p["y"], p["high"]) for p in replies if p["low"] < 1.0] == [("101 to 102", 0.5, 1.0)]
    assert [(p["at"], p["low"]) for p in norms if p["high"] > 1.5] == [("201 to 202", 1.5)]
    assert page.count('<p class="note">Each point stands for 2 rounds:') == 3


def test_norms_are_apart_and_the_summary_has_no_empty_header(page):
    assert ">1.50, 1.50, 1.50<" in page
    assert "<th></th>" not in page
    body, _, _ = page.partition("<script")
    assert body.count('<div class="table"><table>') == body.count("<table>") == 3


def test_no_menu_that_leads_to_the_network(page):
    assert "actions: false" in page
