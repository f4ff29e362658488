"""What the README shows runs as it stands."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sortition import UniformSampler
from sortition.lab.compare import compare
from sortition.lab.contestants import GUIDANCE
from sortition.lab.reports.comparison import MARKS
from sortition.lab.reproduce.figures import FIGURES
from sortition.testing import check_sampler

README = Path(__file__).parent.parent / "README.md"
SERVER = README.parent / "docs" / "server.md"
HOSTILE = README.parent / "docs" / "hostile-clients.md"
REPRODUCTION = README.parent / "docs" / "reproduction.md"


def block(page: Path, name: str) -> str:
    """What ``sortition reproduce`` has filled in."""
    return page.read_text(encoding="utf-8").split(f"<!-- {name} -->\n")[1].split("<!-- end -->")[0]


def rows(page: Path, name: str) -> list[list[str]]:
    lines = [line for line in block(page, name).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_library_example_runs_and_learns() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    scope: dict[str, object] = {}
    exec(compile(example.replace("print(", "_ = ("), str(README), "exec"), scope)
    p = scope["sampler"].probabilities()  # type: ignore[attr-defined]
    assert p.shape == (100,)
    assert p.min() > 0.0
    assert p.sum() == pytest.approx(1.0, abs=1e-9)
    assert p[90:].mean() > 2.0 * p[:10].mean()  # clients with more to say are drawn more often


@pytest.mark.parametrize("page", [SERVER, HOSTILE], ids=lambda page: page.stem)
def test_the_programs_of_the_documentation_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And print what the page says."""
    text = page.read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("secrets.randbits", lambda bits: 2**bits - 1)
    exec(compile(example, str(page), "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2
    for line in printed:
        assert f"    {line}\n" in text


@pytest.mark.parametrize(
    "page", [*README.parent.glob("*.md"), *SERVER.parent.glob("*.md")], ids=lambda page: page.stem
)
def test_tables_are_tables(page: Path) -> None:
    """A row of dashes with more or fewer cells than the header makes it plain text."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for header, dashes in pairwise(lines):
        if re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", dashes):
            assert header.replace(r"\|", "").count("|") == dashes.count("|"), header


def test_the_portfolio_of_the_documentation_prints_what_the_page_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (SERVER.parent / "default-sampler.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "default-sampler.md", "exec"), {})
    assert capsys.readouterr().out.strip() in page


def test_lambda_of_those_online_makes_weights_of_mean_one() -> None:
    """As docs/server.md says: for uniform draws they sum to one in every round."""
    sampler = UniformSampler(num_clients=10, cohort_size=3)
    sampler.add_clients(2)
    online = [0, 3, 5, 7, 11]
    for _ in range(20):
        cohort = sampler.draw(available=online)
        shares = sampler.client_weights(cohort.clients) / sampler.client_weights(online).sum()
        assert shares @ cohort.weights == pytest.approx(1.0, rel=1e-12)


def test_what_it_links_to_exists() -> None:
    text = README.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert links
    for link in links:
        assert (README.parent / link).exists(), link


def test_the_numbers_are_those_of_the_documentation() -> None:
    """The short table is the end of the long one, made by the same command at the same time."""
    assert block(README, "provenance") == block(REPRODUCTION, "provenance")
    expected = [
        [panel, sampler, quantity, published, replayed, ours.split(" ± ")[0], text.split(" ± ")[0]]
        for panel, sampler, quantity, number, published, replayed, _, ours, _, text in rows(
            REPRODUCTION, "published"
        )
        if number == "1000"
    ]
    assert len(expected) == 10
    assert rows(README, "published-in-the-end") == expected


def test_every_figure_has_its_picture_and_its_numbers() -> None:
    text = REPRODUCTION.read_text(encoding="utf-8")
    for name in FIGURES:
        section = text.split(f"\n## Figure {name[3:]}:")[1].split("\n## ")[0]
        assert f"(figures/{name}.svg)" in section
        assert len(rows(REPRODUCTION, name)) > 3


def test_every_published_digit_is_met_with_the_authors_random_numbers() -> None:
    table = rows(REPRODUCTION, "published")
    assert len(table) == 22
    assert [row[4] for row in table] == [row[5] for row in table]


def test_the_table_of_samplers_is_the_one_that_the_command_prints() -> None:
    text = (SERVER.parent / "which-sampler.md").read_text(encoding="utf-8")
    for name, guidance in GUIDANCE.items():
        assert f"| {name}{MARKS.get(name, '')} | {' | '.join(guidance)} |\n" in text


def test_the_problem_of_one_s_own_is_compared_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both programs run, and the table without tuning is the one that is printed."""
    text = (SERVER.parent / "your-problem.md").read_text(encoding="utf-8")
    problem, program = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(problem, "your-problem.md", "exec"), names)
    samplers = ["proportional", "empirical-bayes", "optimal"]
    printed = repr(
        compare(names["Clinics"], samplers, cohort_size=6, num_rounds=60, step_size=0.02, repeats=10)
    )
    for line in printed.splitlines()[:8]:
        assert f"    {line}".rstrip() + "\n" in text
    exec(compile(program.replace("print(", "_ = ("), "your-problem.md", "exec"), names)
    assert "Samplers compared" in (tmp_path / "clinics.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("num_clients", "cohort_size"), [(8, 3), (20, 2)])
def test_the_sampler_of_one_s_own_keeps_every_promise(num_clients: int, cohort_size: int) -> None:
    """Also with clients that were never seen when the check ends."""
    text = (SERVER.parent / "own-sampler.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, "own-sampler.md", "exec"), names)
    check_sampler(
        lambda seed: names["LastUpdate"](num_clients=num_clients, cohort_size=cohort_size, seed=seed)
    )
