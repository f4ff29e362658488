"""Pages and charts: what is in them, and that nothing needs the network."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from sortition.cli import commands
from sortition.core.errors import DataError
from sortition.lab.reports.charts import line_chart
from sortition.lab.reports.markdown import fill_page
from sortition.lab.reports.page import Page, picture_png, picture_svg
from sortition.lab.reports.reproduction import provenance
from sortition.lab.reproduce import QUICK, execute, plan


def test_text_is_escaped_and_kept_apart_from_scripts():
    page = Page("<b>", "a & b")
    page.heading("1 < 2")
    page.paragraph("<script>alert(1)</script>")
    page.bullets(["x > y"])
    page.chart(line_chart({"</script><b>": ([1, 2], [3.0, 4.0])}, "round", "loss"))
    text = page.render()
    assert "&lt;b&gt;" in text
    assert "<script>alert" not in text
    assert text.count("</script>") == 1
    specs = re.search(r"const specs = (.*);\n", text)
    assert specs is not None
    assert json.loads(specs[1].replace("<\\/", "</"))[0]["data"]["values"][0]["sampler"] == "</script><b>"


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
        with pytest.raises(DataError, match="can be read"):
            fill_page(tmp_path / "nowhere.md", [], {})
