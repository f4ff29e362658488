"""Tables, charts and pages: every number arrives, no round is hidden, and nothing needs the network."""

from __future__ import annotations

import json
import platform
import re
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sortition import UniformSampler, __version__
from sortition.cli import commands
from sortition.core.errors import ConfigurationError, DataError
from sortition.lab.compare import Comparison, Row
from sortition.lab.reports.charts import NAME_HEIGHT, POINTS, WIDE_POINTS, Series, line_chart, points
from sortition.lab.reports.ledger_page import ledger_page
from sortition.lab.reports.page import Page, picture_png, picture_svg
from sortition.lab.reports.reproduction import fill_page, provenance
from sortition.lab.reproduce.figures import QUICK
from sortition.lab.reproduce.results import execute, plan
from sortition.lab.versions import versions
from sortition.ledger import open_run, read_run

ROUNDS = 1001
"""No multiple of a stretch: four rounds to a point, and one in the last."""


@pytest.fixture
def comparison() -> Comparison:
    curve = np.array([2.0, 1.0])
    spread = np.array([0.1, 0.1])
    repeats = np.array([[1.9, 0.9], [2.0, 1.0], [2.1, np.inf]])
    return Comparison(
        problem="Clinics",
        num_clients=60,
        cohort_size=5,
        num_rounds=700,
        repeats=3,
        design="with_replacement",
        memory=False,
        tuned=False,
        seed=7,
        step_size=0.1,
        target_loss=0.4321,
        initial_loss=2.5,
        rows=(
            Row("uniform", 0.1, 560.0, 1.0, (1.0, 1.0), 0.4, 0.02, 9.876, curve, spread, curve, repeats),
            Row("lucky", 0.1, 280.0, 0.5, (0.4, 0.625), 0.3, 0.01, 1.5, curve, spread, curve, repeats),
            Row("alike", 0.1, 550.0, 0.98, (0.9, 1.1), 0.4, 0.01, 1.5, curve, spread, curve, repeats),
            Row("lost", 0.1, None, None, None, np.inf, np.nan, np.nan, curve, spread, curve, repeats),
        ),
    )


def test_a_comparison_prints_as_an_aligned_table(comparison):
    lines = repr(comparison).splitlines()
    assert lines[0] == "Clinics: 60 clients, 5 drawn a round (with replacement), 700 rounds, 3 repeats"
    assert lines[2:8] == [
        "sampler  rounds          vs uniform  difference        final loss  variance by norms",
        "-------  ------  ------------------  -------------  -------------  -----------------",
        "uniform     560               x1.00                 0.400 ± 0.020              x9.88",
        "lucky       280  x0.50 [0.40, 0.62]  fewer          0.300 ± 0.010              x1.50",
        "alike       550  x0.98 [0.90, 1.10]  no difference  0.400 ± 0.010              x1.50",
        "lost      > 700                   -                      diverged                  -",
    ]


@pytest.mark.parametrize(
    ("design", "formula", "meaning"),
    [
        ("fixed_size", "(1 / chance to be drawn - 1), over the least", "independent draws; that of others"),
        ("independent", "(1 / chance to be drawn - 1), over the least", "variance of independent draws."),
        ("with_replacement", "/ probability, over the least", "less the square of the full aggregate"),
        ("without_replacement", "/ probability, over the least", "draws without replacement have another"),
    ],
)
def test_the_last_column_says_what_it_is(comparison, design, formula, meaning):
    """A formula of the norms: the variance of independent draws only."""
    shown = replace(comparison, design=design)
    for text in (repr(shown), shown.page()):
        assert f"the sum of (share x norm)² {formula}" in text
        assert meaning in text


def test_a_ratio_without_an_interval_is_explained(comparison):
    said = "A ratio without brackets has no interval: without one of the repeats the target is missed."
    assert said not in repr(comparison)
    uniform, lucky, *others = comparison.rows
    hanging = replace(comparison, rows=(uniform, replace(lucky, interval=None), *others))
    assert said in repr(hanging)
    assert said in hanging.page()
    assert said not in repr(replace(hanging, repeats=1))


def test_repeats_of_one_federation_are_told(comparison):
    said = "Clinics ignores its seed: all repeats have one federation, and the intervals are over draws only."
    assert said not in repr(comparison)
    fixed = replace(comparison, ignores_seed=True)
    assert said in repr(fixed)
    assert said in fixed.page()


def test_a_notebook_shows_the_same_table(comparison):
    shown = comparison._repr_html_()
    assert shown.count("<tr>") == 5
    assert "x0.50 [0.40, 0.62]" in shown
    assert '<th class="number">rounds</th>' in shown
    assert "<th>sampler</th>" in shown


def test_json_keeps_everything(comparison, tmp_path):
    comparison.save(tmp_path / "comparison.json")
    stored = json.loads((tmp_path / "comparison.json").read_text())
    assert stored["target_loss"] == 0.4321
    assert stored["num_rounds"] == 700
    assert [row["name"] for row in stored["rows"]] == ["uniform", "lucky", "alike", "lost"]
    assert stored["rows"][1]["losses"] == [2.0, 1.0]
    assert stored["rows"][1]["interval"] == [0.4, 0.625]
    assert stored["rows"][3]["final_loss"] is None
    assert stored["rows"][1]["losses_of_repeats"] == [[1.9, 0.9], [2.0, 1.0], [2.1, None]]
    assert (stored["versions"], stored["seed"], stored["step_size"]) == (versions(), 7, 0.1)


def test_the_page_tells_how_to_make_it_again(comparison):
    made_by = (
        f"by sortition {__version__}, python {platform.python_version()}, numpy {np.__version__}, numba "
    )
    own = f"{version('numba')}, seeds 7 to 9, step size 0.1"
    assert made_by in comparison.page()
    assert f"{own}." in comparison.page()
    tuned = replace(comparison, tuned=True).page()
    assert f"{own}, from which each sampler&#x27;s was tuned on seeds 10 to 11." in tuned
    assert f"{version('numba')}, seed 7, step" in replace(comparison, repeats=1).page()


@pytest.mark.parametrize("name", ["a.png", "a.svg", "a.csv", "a.pdf", "a.txt", "a", "json"])
def test_only_pages_and_numbers_are_written(comparison, tmp_path, name):
    expected = rf"path must end in .html \(the page\) or .json \(all numbers\), got '{name}'"
    with pytest.raises(ConfigurationError, match=expected):
        comparison.save(tmp_path / name)
    assert not list(tmp_path.iterdir())
    comparison.save(tmp_path / "A.HTML")
    assert (tmp_path / "A.HTML").read_text().startswith("<!doctype html>")


def test_text_is_escaped_and_kept_apart_from_scripts():
    page = Page("<b>", "a & b")
    page.heading("1 < 2")
    page.paragraph("<script>alert(1)</script>")
    page.bullets(["x > y"])
    name = "<!--<script></script><b>"
    page.chart(line_chart({name: ([1, 2], [3.0, 4.0])}, "round", "loss"))
    text = page.render()
    assert "&lt;b&gt;" in text
    assert "<script>alert" not in text
    assert text.count("</script>") == 1
    specs = re.search(r"const specs = (.*);\n", text)
    assert specs is not None
    assert "<" not in specs[1]  # after "<!--<script>" the script would not end where it should
    assert json.loads(specs[1])[0]["data"]["values"][0]["sampler"] == name


def test_cells_by_kind():
    page = Page("t", "l")
    page.table(("a",), [[True], [False], [None], [-1.234], [3e9], [12345], ["x<"]], folded="more")
    text = page.render()
    for cell in (">yes<", ">no<", ">-<", ">−1.23<", ">3.00e+09<", ">12,345<", ">x&lt;<", "<summary>more<"):
        assert cell in text
    assert "vegaEmbed" not in text  # no charts, no scripts


def test_pictures():
    spec = line_chart({"uniform": (np.arange(500), np.arange(500.0))}, "round", "loss")
    assert len(spec["data"]["values"]) == 250  # two rounds to a point
    assert picture_png(spec).startswith(b"\x89PNG")
    svg = picture_svg(spec).decode()
    assert svg.startswith("<svg")
    assert "uniform" in svg


def test_compare_writes_a_page(tmp_path):
    page = tmp_path / "report.html"
    arguments = ["compare", "--clients", "20", "--rounds", "10", "--repeats", "1", "--jobs", "1"]
    arguments += ["--step-size", "0.01"]
    arguments += ["--samplers", "uniform,avare", "--report", str(page)]
    result = CliRunner().invoke(commands.app, arguments)
    assert result.exit_code == 0
    assert f"Report: {page}" in result.stdout
    text = page.read_text()
    assert text.count('class="chart"') == 2
    assert "avare" in text
    specs = re.search(r"const specs = (.*);\n", text)
    assert specs is not None
    loss = json.loads(specs[1])[0]
    assert loss["layer"][0]["encoding"]["y"]["scale"]["type"] == "log"
    assert loss["layer"][-1]["mark"]["type"] == "rule"  # the target


def test_a_logarithmic_axis_leaves_out_what_is_not_positive():
    spec = line_chart({"a": ([1, 2, 3], [0.0, 1e-7, 1e6])}, "x", "y", log=True)
    assert [value["y"] for value in spec["data"]["values"]] == [1e-7, 1e6]
    assert picture_svg(line_chart({"a": ([1], [0.0])}, "x", "y", log=True)).startswith(b"<svg")


def test_compare_refuses_a_page_that_can_not_be_written(tmp_path):
    result = CliRunner().invoke(commands.app, ["compare", "--report", str(tmp_path / "no" / "page.html")])
    assert result.exit_code == 2
    assert "no/page.html" in result.stderr


@pytest.mark.parametrize("curve", [[np.nan, 1.0], [np.nan, np.nan]])
def test_what_is_not_a_number_is_not_drawn(curve):
    values = line_chart({"a": ([1, 2], curve)}, "x", "y")["data"]["values"]
    assert all(np.isfinite(value["y"]) for value in values)


class TestMarkdown:
    def test_blocks_are_filled_and_the_rest_is_kept(self, tmp_path):
        scale = replace(QUICK, rounds=3, repeats=1)
        results = execute(plan(["fig5", "fig7"], tmp_path / "out", variants=("text",), scale=scale), jobs=1)
        page = tmp_path / "page.md"
        blocks = "A\n<!-- fig7 -->\nold\n<!-- end -->\nB\n<!-- fig1 -->\nkept\n<!-- end -->\nC\n"
        page.write_text(blocks + "![Figure 5](figures/fig5.svg)\n")
        origin = provenance(plan(["fig5"], tmp_path / "out", variants=("text",)), results, scale, quick=True)
        for _ in range(2):  # filling twice is filling once
            assert fill_page(page, results, origin) == ["fig7"]
            text = page.read_text()
            assert "old" not in text
            assert "| σ = 3 | with replacement |" in text
            assert "kept" in text
            assert [line for line in text.splitlines() if line in ("A", "B", "C")] == ["A", "B", "C"]
        assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["fig5.svg"]  # as shown

    def test_no_such_page(self, tmp_path):
        with pytest.raises(DataError, match="nowhere"):
            fill_page(tmp_path / "nowhere.md", [], {})


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
    assert [layer["mark"]["type"] for layer in chart["layer"]] == ["line", "text"]
    assert "description" not in chart


def test_a_band_is_drawn_and_described_where_a_point_is_a_stretch():
    values = np.tile([1.0, 1.0, 4.0], 400)
    mean = line_chart({"a": (np.arange(1200), values)}, "round", "y")
    median = line_chart({"a": (np.arange(1200), values)}, "round", "y", log=True)
    assert [layer["mark"]["type"] for layer in mean["layer"]] == ["area", "line", "text"]
    assert "4 rounds" in mean["description"]
    assert "mean" in mean["description"]
    assert "median" in median["description"]
    assert mean["data"]["values"][0]["y"] == 1.75
    assert median["data"]["values"][0]["y"] == 1.0
    page = Page("t", "l")
    page.chart(mean)
    assert page.render().count(mean["description"]) == 2  # below the chart, and in it for those who can't see


def names_of(chart: dict[str, Any]) -> dict[str, float]:
    """The names beside the curves, and how far below the top they are."""
    texts = [layer for layer in chart["layer"] if layer["mark"]["type"] == "text"]
    return {layer["mark"]["text"]: layer["encoding"]["y"]["value"] for layer in texts}


def test_each_curve_has_its_name_at_its_end_and_none_covers_another():
    ends = {"top": 10.0, "one": 1.0, "two": 1.01, "three": 0.99, "low": 0.0, "none": np.nan}
    chart = line_chart({name: ([1, 2], [end, end]) for name, end in ends.items()}, "x", "y", height=220)
    assert "legend" not in json.dumps(chart).replace('"legend": null', "")
    names = names_of(chart)
    assert list(names) == ["top", "one", "two", "three", "low"]  # no name where there is no curve
    down = sorted(names, key=names.__getitem__)
    assert down == ["top", "two", "one", "three", "low"]
    assert names["top"] == 10.0  # a twenty-second part of the height is room above it
    assert np.diff(sorted(names.values())).min() >= NAME_HEIGHT
    assert max(names.values()) <= 220
    assert names_of(line_chart({"y": ([1, 2], [1.0, 2.0])}, "x", "y")) == {}  # the axis has it already


def test_names_on_a_logarithmic_axis_and_more_names_than_there_is_room_for():
    chart = line_chart({"a": ([1, 2], [1.0, 1.0]), "b": ([1, 2], [1.0, 1e4])}, "x", "y", log=True, height=300)
    low, high = chart["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert names_of(chart)["a"] == pytest.approx(300 * np.log(high) / np.log(high / low), abs=0.1)
    many = names_of(line_chart({str(n): ([1, 2], [1.0, 1.0]) for n in range(40)}, "x", "y"))
    assert np.allclose(np.diff(list(many.values())), NAME_HEIGHT)
    assert min(many.values()) == 0.0


@pytest.mark.parametrize(
    ("one", "two", "log"),
    [(0.6931471, 0.6931472, False), (1e6 + 0.1, 1e6 + 0.5, False), (5e-324, 5e-324, True)],
)
def test_curves_that_are_nearly_one_have_names_and_an_axis(one: float, two: float, log: bool) -> None:
    chart = line_chart({"a": ([1, 2], [one, one]), "b": ([1, 2], [two, two])}, "x", "y", log=log)
    assert np.isfinite(list(names_of(chart).values())).all()
    if not log:
        low, high = chart["layer"][0]["encoding"]["y"]["scale"]["domain"]
        assert low < one < two < high


def test_deviations_of_a_stretch_are_all_in_the_band():
    mean, spread = np.zeros(10 * POINTS), np.full(10 * POINTS, 0.5)
    mean[123], spread[456] = 2.0, 7.0
    found = points(Series("a", np.arange(10.0 * POINTS), mean, spread), POINTS)
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
    assert [(p["at"], p["y"], p["high"]) for p in replies if p["low"] < 1.0] == [("100 to 101", 0.5, 1.0)]
    assert [(p["at"], p["low"]) for p in norms if p["high"] > 1.5] == [("200 to 201", 1.5)]
    assert page.count('<p class="note">Each point') == 3


def test_a_wide_chart_begins_with_its_first_round():
    spec = line_chart({"a": ([-1, 0, 1000], [1.0, 2.0, 3.0])}, "round", "y")
    assert spec["layer"][0]["encoding"]["x"]["scale"] == {"nice": False, "zero": False}
    drawn = picture_svg({**spec, "width": 300}).decode()
    assert "for a linear scale with values from −1 to 1,000" in drawn


def test_norms_are_apart_and_the_summary_has_no_empty_header(page):
    assert ">1.50, 1.50, 1.50<" in page
    assert "<th></th>" not in page
    body, _, _ = page.partition("<script")
    assert body.count('<div class="table"><table>') == body.count("<table>") == 4


def test_no_menu_that_leads_to_the_network(page):
    assert "actions: false" in page
