"""``sortition reproduce``: everything, quickly, and what it does with bad input."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sortition.cli import commands
from sortition.lab.problems import idx
from sortition.lab.reports.reproduction import fill_page, provenance
from sortition.lab.reproduce.figures import FIGURES, QUICK, VARIANTS, figure
from sortition.lab.reproduce.finished import RunStore
from sortition.lab.reproduce.results import execute, plan

SHARED = Path(__file__).parents[2] / "shared" / "data"
FILES = ("curves.csv", "figure.png", "figure.svg", "summary.json")
HAVE_IMAGES = SHARED.is_dir() and all(idx.find(idx.IMAGE_SETS[name], SHARED) for name in idx.IMAGE_SETS)


def invoke(*arguments: str):
    return CliRunner().invoke(commands.app, ["reproduce", *arguments])


def outside_links(page: str) -> list[str]:
    """What a browser would fetch to show the page."""
    body = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    return re.findall(r"""(?:src|href)\s*=\s*["']?(?!#)[^"'\s>]+""", body)


@pytest.fixture(scope="module")
def everything(tmp_path_factory) -> Path:
    """All figures, or all but the images where there are none."""
    out = tmp_path_factory.mktemp("reproduction")
    names = ["all", "--data", str(SHARED)] if HAVE_IMAGES else [name for name in FIGURES if name != "fig6"]
    result = invoke(*names, "--quick", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert f"Report: {out / 'report.html'}" in result.stdout
    return out


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_leaves_its_files(everything, name):
    if name == "fig6" and not HAVE_IMAGES:
        pytest.skip("no ../shared/data with the image sets, or Debian's dataset-fashion-mnist is missing")
    directory = everything / name
    assert sorted(path.name for path in directory.iterdir()) == sorted(FILES)
    assert (directory / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (directory / "figure.svg").read_text().startswith("<svg")
    with (directory / "curves.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    summary = json.loads((directory / "summary.json").read_text())
    assert {row["variant"] for row in rows} == {"text", "authors"}
    quantities = {"fig5": {"clients"}, "fig6": {"log loss", "accuracy"}}.get(name, {"log loss", "log regret"})
    assert {row["quantity"] for row in rows} == quantities
    assert summary["quick"] is True
    assert {"numpy", "numba", "python", "sortition"} <= set(summary["versions"])
    if name != "fig5":
        assert {row["round"] for row in summary["final"]} == {30}
        assert all(entry["runs"] for entry in summary["settings"])
    if name in ("fig1", "fig2", "fig3"):
        assert all(row["kept"] for row in summary["bounds"])


def test_page_is_self_contained(everything):
    page = (everything / "report.html").read_text()
    assert outside_links(page) == []
    assert "vegaEmbed" in page
    assert page.count('class="chart"') == len([name for name in FIGURES if (everything / name).is_dir()])
    assert "As the authors" in page


def test_a_second_start_runs_nothing(everything):
    before = {path: path.stat().st_mtime_ns for path in (everything / "runs").iterdir()}
    result = invoke("fig7", "--quick", "--out", str(everything))
    assert result.exit_code == 0
    assert "finished runs found" in result.stderr
    assert {path: path.stat().st_mtime_ns for path in (everything / "runs").iterdir()} == before
    assert (everything / "fig7" / "report.html").is_file()
    (everything / "fig7" / "report.html").unlink()


def test_pages_are_filled_and_only_pictures_that_they_show_are_drawn(everything, tmp_path):
    one, two = tmp_path / "one.md", tmp_path / "two.md"
    one.write_text(
        "Mine.\n\n![seven](pictures/fig7.svg)\n\n<!-- fig7 -->\nold\n<!-- end -->\n\n"
        "Mine too.\n<!-- fig5 -->\n<!-- end -->\n"
    )
    two.write_text("<!-- provenance -->\n<!-- end -->\n<!-- fig1 -->\nnot run\n<!-- end -->\n")
    todo = plan(["fig5", "fig7"], everything, variants=VARIANTS, scale=QUICK)
    results = execute(todo, jobs=1)
    origin = provenance(todo, results, QUICK, quick=True)
    assert fill_page(one, results, origin) == ["fig5", "fig7"]
    assert fill_page(two, results, origin) == ["provenance"]
    text = one.read_text()
    assert text.startswith("Mine.\n")
    assert "<!-- end -->\n\nMine too.\n" in text
    assert "| 5 | 100 | 0 |" in text
    assert "| images in all | 4825 | 5325 |" in text
    assert "| σ = 10 | without replacement |" in text
    assert "old" not in text
    assert "Made on" in two.read_text()
    assert "not run" in two.read_text()
    assert [path.name for path in tmp_path.rglob("*.svg")] == ["fig7.svg"]


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


class TestBadInput:
    def refused(self, *arguments: str) -> str:
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.startswith("sortition: ")
        assert result.stderr.count("\n") == 1
        return result.stderr

    @pytest.fixture
    def finished(self, everything, tmp_path) -> Path:
        """A copy of a finished run, to damage."""
        out = tmp_path / "out"
        shutil.copytree(everything, out)
        return out

    def test_unknown_figure_variant_and_number(self, tmp_path):
        assert "'fig9'" in self.refused("fig9", "--out", str(tmp_path / "out"))
        assert "'ours'" in self.refused("fig1", "--variant", "ours", "--out", str(tmp_path / "out"))
        assert "'0'" in self.refused("fig1", "--jobs", "0", "--out", str(tmp_path / "out"))
        assert not (tmp_path / "out").exists()

    def test_an_empty_name_is_not_the_current_directory(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert "'--out'" in self.refused("fig5", "--quick", "--out", "")
        assert "'--data'" in self.refused("fig5", "--quick", "--data", "")
        assert list(tmp_path.iterdir()) == []

    def test_a_figure_named_twice_is_made_once(self, tmp_path):
        result = invoke("fig5", "fig5", "--quick", "--out", str(tmp_path))
        assert result.exit_code == 0
        assert result.stdout.count("fig5: ") == 1

    def test_a_file_in_the_place_of_a_directory(self, tmp_path):
        (tmp_path / "fig5").write_text("mine")
        assert "fig5" in self.refused("fig5", "--quick", "--out", str(tmp_path))
        assert (tmp_path / "fig5").read_text() == "mine"

    def test_a_directory_in_the_place_of_a_file(self, tmp_path):
        (tmp_path / "fig5" / "figure.png").mkdir(parents=True)
        assert "figure.png" in self.refused("fig5", "--quick", "--out", str(tmp_path))
        assert not list(tmp_path.rglob("*.part"))

    @pytest.mark.parametrize(
        "page", [b"no marks", b"<!-- fig5 -->\nno end", b"<!-- end -->\n<!-- fig5 -->\n", b"\xff\xfe"]
    )
    def test_a_page_that_can_not_be_filled_is_refused_before_the_work(self, tmp_path, page):
        docs, out = tmp_path / "page.md", tmp_path / "out"
        docs.write_bytes(page)
        assert "page.md" in self.refused("all", "--out", str(out), "--docs", str(docs))
        assert docs.read_bytes() == page
        assert not out.exists()

    @pytest.mark.parametrize("less", [("all", "--quick"), ("fig5",), ("all", "--variant", "text")])
    def test_pages_are_not_filled_from_less_than_everything(self, tmp_path, less):
        docs, out = tmp_path / "page.md", tmp_path / "out"
        docs.write_text("<!-- fig5 -->\n<!-- end -->\n")
        message = self.refused(*less, "--out", str(out), "--docs", str(docs))
        assert "'--docs'" in message
        assert docs.read_text() == "<!-- fig5 -->\n<!-- end -->\n"
        assert not out.exists()

    def test_no_figure(self):
        assert "FIGURE" in self.refused()

    def test_missing_data(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        empty = {name: idx.ImageSet(name, "http://127.0.0.1:9/", {}) for name in idx.IMAGE_SETS}
        monkeypatch.setattr(idx, "IMAGE_SETS", empty)
        out = tmp_path / "out"
        assert "--data" in self.refused("fig6", "--quick", "--out", str(out))
        assert "nowhere" in self.refused("fig6", "--data", str(tmp_path / "nowhere"), "--out", str(out))
        assert not out.exists()

    def test_output_that_can_not_be_written(self, tmp_path):
        (tmp_path / "file").write_text("mine")
        for out in (tmp_path / "file", tmp_path / "file" / "below"):
            message = self.refused("fig7", "--quick", "--out", str(out))
            assert str(tmp_path / "file") in message
        assert (tmp_path / "file").read_text() == "mine"

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_directory_without_permission(self, tmp_path):
        tmp_path.chmod(0o500)
        assert str(tmp_path) in self.refused("fig7", "--quick", "--out", str(tmp_path / "out"))

    def test_half_written_run(self, finished):
        run = next(figure("fig7", VARIANTS, QUICK).runs())
        path = RunStore(finished / "runs").path(run)
        path.write_bytes(path.read_bytes()[:100])
        before = contents(finished)
        message = self.refused("fig7", "--quick", "--out", str(finished))
        assert path.name in message
        assert "damaged" in message
        assert contents(finished) == before

    def test_half_written_summary(self, finished):
        (finished / "fig7" / "summary.json").write_text('{"figure": "fig')
        before = contents(finished)
        assert "damaged" in self.refused("fig7", "--quick", "--out", str(finished))
        assert contents(finished) == before

    def test_a_full_run_does_not_replace_a_quick_one(self, finished):
        before = contents(finished)
        assert "--out" in self.refused("fig7", "--out", str(finished))
        assert contents(finished) == before

    def test_what_a_killed_run_leaves_is_ignored(self, finished):
        (finished / "runs" / ".abc.npz.1.part").write_bytes(b"half")
        assert invoke("fig7", "--quick", "--out", str(finished)).exit_code == 0
