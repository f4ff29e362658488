"""The pages: short, complete, and true to the library."""

from __future__ import annotations

import importlib
import pkgutil
import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sortition
import sortition.integrations
from sortition import UniformSampler, default_sampler
from sortition.lab.compare import compare
from sortition.lab.contestants import GUIDANCE
from sortition.lab.reports.comparison import MARKS
from sortition.lab.reproduce.figures import FIGURES
from sortition.ledger import read_run
from sortition.testing import check_sampler

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
TUTORIALS, HOW_TO, EXPLANATION = DOCS / "tutorials", DOCS / "how-to", DOCS / "explanation"
REPRODUCTION = DOCS / "research" / "reproduction.md"
PAGES = [
    page for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")] if "_build" not in page.relative_to(ROOT).parts
]
USER_PAGES = [
    README,
    DOCS / "index.md",
    *(page for part in (TUTORIALS, HOW_TO, EXPLANATION) for page in sorted(part.glob("*.md"))),
]
REFERENCE = sorted((DOCS / "reference").glob("*.md"))
MOST_WORDS, MOST_README_LINES = 9_000, 120

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def programs(page: Path) -> list[str]:
    """The Python of a page: of a tutorial the cells that run, of other pages the blocks."""
    return re.findall(r"```(?:python|\{code-cell\} ipython3)\n(.*?)```", text_of(page), re.DOTALL)


# Words and links --------------------------------------------------------------------------------------------


def test_the_pages_for_users_are_short() -> None:
    """All words count, also those of programs and tables; reference and research notes do not."""
    words = {str(page.relative_to(ROOT)): len(text_of(page).split()) for page in USER_PAGES}
    assert sum(words.values()) <= MOST_WORDS, words


def test_with_the_reference_they_are_short_too() -> None:
    """All words that one reads: without programs, what these print, and docstrings that autodoc puts in."""

    def words_of(page: Path) -> int:
        prose = re.sub(
            r"^```.*?^```$|\A---\n.*?^---$|^ {4}[^\n]*$", "", text_of(page), flags=re.DOTALL | re.MULTILINE
        )
        return sum(any(letter.isalnum() for letter in word) for word in prose.split())

    words = {str(page.relative_to(ROOT)): words_of(page) for page in [*USER_PAGES, *REFERENCE]}
    assert sum(words.values()) <= MOST_WORDS, words


def test_the_readme_is_short() -> None:
    assert len(text_of(README).splitlines()) <= MOST_README_LINES


@pages
def test_what_a_page_links_to_exists(page: Path) -> None:
    """Sphinx checks headings too, but not the pages beside docs."""
    for link in re.findall(r"\]\(([^)#\s]+)|(?:src|srcset)=\"([^\"]+)\"", text_of(page)):
        target = link[0] or link[1]
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pages
def test_tables_are_tables(page: Path) -> None:
    """A row of dashes with more or fewer cells than the header makes it plain text."""
    for header, dashes in pairwise(text_of(page).splitlines()):
        if re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", dashes):
            assert header.replace(r"\|", "").count("|") == dashes.count("|"), header


def test_every_page_is_in_the_contents() -> None:
    contents = text_of(DOCS / "index.md") + text_of(DOCS / "research" / "index.md")
    listed = set(re.findall(r"^[\w/-]+$", contents, re.MULTILINE))
    for part in (TUTORIALS, HOW_TO, EXPLANATION, DOCS / "reference"):
        assert {f"{part.name}/{page.stem}" for page in part.glob("*.md")} <= listed
    notes = {page.stem for page in REPRODUCTION.parent.glob("*.md")} - {"index"}
    assert notes <= listed


def test_pages_that_the_source_names_exist() -> None:
    for folder in ("src", "benchmarks", "examples", "tests"):
        for file in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"\bdocs/[\w/-]+\.md", text_of(file)):
                assert (ROOT / name).exists(), f"{file.name} names {name}"


# The reference ----------------------------------------------------------------------------------------------


INTEGRATIONS = [
    f"sortition.integrations.{module.name}"
    for module in pkgutil.iter_modules(sortition.integrations.__path__)
]


def test_each_integration_has_an_extra_that_is_installed_for_the_tests() -> None:
    extras = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    installed = re.search(r"^ALL_EXTRAS\s*:= (.*)$", text_of(ROOT / "Makefile"), re.MULTILINE)
    assert installed is not None
    names = {package.rpartition(".")[2] for package in INTEGRATIONS}
    assert {"flower", "torch"} <= names
    assert names <= extras.keys() & set(installed[1].split(","))


@pytest.mark.parametrize(
    "package", ["sortition", "sortition.ledger", "sortition.lab", "sortition.testing", *INTEGRATIONS]
)
def test_every_public_name_is_in_the_reference(package: str) -> None:
    if package in INTEGRATIONS:
        framework = package.rpartition(".")[2]
        pytest.importorskip({"flower": "flwr"}.get(framework, framework), reason="its extra is not installed")
    listed = {
        name
        for page in (DOCS / "reference").glob("*.md")
        for name in re.findall(r"^\.\. auto\w+:: ([\w.]+)", text_of(page), re.MULTILINE)
    }
    errors = {
        f"sortition.{name}" for name in sortition.__all__ if name.endswith("Error")
    }  # by their module, on a page of their own
    assert "sortition.core.errors" in listed
    names = {f"{package}.{name}" for name in importlib.import_module(package).__all__}
    assert names - errors <= listed


# Programs ---------------------------------------------------------------------------------------------------


def test_the_example_of_the_readme_runs_and_learns() -> None:
    example = programs(README)[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 12
    scope: dict[str, Any] = {}
    exec(compile(example.replace("print(", "_ = ("), str(README), "exec"), scope)
    p = scope["sampler"].probabilities()
    assert p.shape == (100,)
    assert p.min() > 0.0
    assert p.sum() == pytest.approx(1.0, abs=1e-9)
    assert p[90:].mean() > 2.0 * p[:10].mean()  # clients with more to say are drawn more often


def test_the_three_lines_for_flower_run() -> None:
    pytest.importorskip("flwr", reason="the extra flower is not installed")
    example = programs(README)[1]
    assert len([line for line in example.splitlines() if line.strip()]) == 3
    exec(compile(example, str(README), "exec"), {})


def test_the_program_against_lies_prints_what_the_page_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = HOW_TO / "hostile-and-private-clients.md"
    monkeypatch.setattr("secrets.randbits", lambda bits: 2**bits - 1)
    exec(compile(programs(page)[0], str(page), "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed
    for line in printed:
        assert line in text_of(page)


def test_the_program_of_the_mini_batches_runs_and_learns() -> None:
    torch = pytest.importorskip("torch", reason="the extra torch is not installed")
    page = HOW_TO / "mini-batches.md"
    torch.manual_seed(0)
    scope: dict[str, Any] = {}
    exec(compile(programs(page)[0], str(page), "exec"), scope)
    points, labels = scope["dataset"].tensors
    right = (scope["head"](scope["body"](points)).argmax(dim=1) == labels).float().mean()
    assert right > 0.9
    assert scope["sampler"].probabilities().max() > 2.0 / len(points)  # some examples are drawn more often


@pytest.mark.parametrize("name", ["defences", "run-record", "flower-names", "comparing"])
def test_the_programs_of_the_reference_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "flower-names":
        pytest.importorskip("flwr", reason="the extra flower is not installed")
    page = DOCS / "reference" / f"{name}.md"
    monkeypatch.chdir(tmp_path)
    exec(compile(programs(page)[0], str(page), "exec"), {})


def test_the_server_of_the_record_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program of the page, with clients that are offline, silent, lie and join, and with crashes.

    Whatever happens, it ends with the model of the unbroken run, to the bit, and three clients join once.
    """
    page = HOW_TO / "resume-and-records.md"
    program = programs(page)[0].replace("num_clients=1000", "num_clients=20").replace("500", "12")
    monkeypatch.chdir(tmp_path)

    def serve(file: str, crash_in: str = "", crash_at: int = -1) -> Any:
        """The model in the end; or a crash within a function of the server, before that round."""

        def die(function: str) -> None:
            if (function, scope["run"].round_index) == (crash_in, crash_at):
                scope["run"]._abandon()
                raise KeyboardInterrupt

        def clients_ever() -> int:
            return 23 if scope["run"].round_index >= 6 else 20

        def online() -> Any:  # after a join
            die("online")
            return np.flatnonzero(np.arange(scope["run"].sampler.num_ids) % 5 != 4)

        def train(model: Any, cohort: Any) -> Any:  # after a draw
            die("train")
            rng = np.random.default_rng(cohort.round_index)
            updates = (model - rng.normal(size=(len(cohort), 3))) * 0.1
            updates[rng.random(len(cohort)) < 0.2] = np.nan
            return updates * np.where(cohort.clients == 7, 1e9, 1.0)[:, None]

        def loss_of(model: Any) -> float:  # after the feedback
            die("loss_of")
            return float(np.sum(model**2))

        scope: dict[str, Any] = {"initial_model": lambda: np.zeros(3), "clients_ever": clients_ever}
        scope |= {"online": online, "train": train, "loss_of": loss_of}
        exec(compile(program.replace("run.db", file), str(page), "exec"), scope)
        return scope["model"]

    whole = serve("whole.db")
    assert np.linalg.norm(whole) < 1e4  # lies of a billion times were clipped
    for crash in (("train", 6), ("loss_of", 6), ("online", 6), ("train", 7)):
        file = f"{crash[0]}-{crash[1]}.db"
        with pytest.raises(KeyboardInterrupt):
            serve(file, *crash)
        assert np.array_equal(serve(file), whole), crash
        with read_run(file) as record:
            (change,) = record.memberships()
        assert (change.round_index, change.joined.tolist()) == (6, [20, 21, 22])  # type: ignore[union-attr]


def test_the_dead_are_left_out_and_asked_again() -> None:
    """The two lines of docs/how-to/unreliable-clients.md; who comes back is drawn again."""
    page = HOW_TO / "unreliable-clients.md"
    lines = compile(programs(page)[0], str(page), "exec")
    sampler, draws = default_sampler(num_clients=60, cohort_size=8, seed=1), np.zeros((2, 60))
    scope: dict[str, Any] = {"sampler": sampler, "rng": np.random.default_rng(0)}
    for t in range(1200):
        scope["online"] = np.arange(60)
        exec(lines, scope)
        cohort = sampler.draw(available=scope["online"])
        draws[t // 600, cohort.clients] += 1
        sampler.observe(cohort, np.where((cohort.clients < 3) & (t < 600), np.nan, 1.0))
    assert draws[0, :3].mean() < 15.0
    assert draws[0, 3:].min() > 60.0
    assert draws[1, :3].min() > 20.0


def test_shares_of_those_online_make_weights_of_mean_one() -> None:
    """As docs/how-to/unreliable-clients.md says: for uniform draws they sum to one in every round."""
    sampler = UniformSampler(num_clients=10, cohort_size=3)
    sampler.add_clients(2)
    online = [0, 3, 5, 7, 11]
    for _ in range(20):
        cohort = sampler.draw(available=online)
        shares = sampler.client_weights(cohort.clients) / sampler.client_weights(cohort.available).sum()
        assert shares @ cohort.weights == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(("num_clients", "cohort_size"), [(8, 3), (20, 2)])
def test_the_sampler_of_one_s_own_keeps_every_promise(num_clients: int, cohort_size: int) -> None:
    """Also with clients that were never seen when the check ends."""
    page = TUTORIALS / "own-sampler.md"
    names: dict[str, Any] = {}
    exec(compile(programs(page)[0], str(page), "exec"), names)
    check_sampler(
        lambda seed: names["LastUpdate"](num_clients=num_clients, cohort_size=cohort_size, seed=seed)
    )


def test_the_problem_of_one_s_own_ends_as_the_page_says(tmp_path: Path) -> None:
    """At one step size no difference is shown; and a page is written."""
    page = TUTORIALS / "your-problem.md"
    names: dict[str, Any] = {}
    exec(compile(programs(page)[0], str(page), "exec"), names)
    samplers = ["proportional", "empirical-bayes", "optimal"]
    comparison = compare(names["Clinics"], samplers, cohort_size=6, num_rounds=60, step_size=0.02, repeats=10)
    assert [row.difference for row in comparison.rows[1:]] == ["no difference"] * 3
    assert comparison.rows[0].mean_variance_ratio > 3.0
    comparison.save(tmp_path / "clinics.html")
    assert "Samplers compared" in text_of(tmp_path / "clinics.html")


# Numbers ----------------------------------------------------------------------------------------------------


def block(page: Path, name: str) -> str:
    """What ``sortition reproduce`` has filled in."""
    return text_of(page).split(f"<!-- {name} -->\n")[1].split("<!-- end -->")[0]


def rows(page: Path, name: str) -> list[list[str]]:
    lines = [line for line in block(page, name).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_short_table_is_the_end_of_the_long_one() -> None:
    expected = [
        [panel, sampler, published, replayed, ours.split(" ± ")[0], text.split(" ± ")[0]]
        for panel, sampler, quantity, number, published, replayed, _, ours, _, text in rows(
            REPRODUCTION, "published"
        )
        if number == "1000" and quantity == "log loss"
    ]
    assert len(expected) == 9
    assert rows(EXPLANATION / "reproduction.md", "published-in-the-end") == expected


def test_every_figure_has_its_picture_and_its_numbers() -> None:
    for name in FIGURES:
        section = text_of(REPRODUCTION).split(f"\n## Figure {name[3:]}:")[1].split("\n## ")[0]
        assert f"(figures/{name}.svg)" in section
        assert len(rows(REPRODUCTION, name)) > 3


def test_every_published_digit_is_met_with_the_authors_random_numbers() -> None:
    table = rows(REPRODUCTION, "published")
    assert len(table) >= 22
    assert [row[4] for row in table] == [row[5] for row in table]


def test_the_table_of_samplers_is_the_one_that_the_command_prints() -> None:
    for name, guidance in GUIDANCE.items():
        row = f"| {name}{MARKS.get(name, '')} | {' | '.join(guidance)} |\n"
        assert row in text_of(HOW_TO / "which-sampler.md")


# Publishing -------------------------------------------------------------------------------------------------


def test_the_version_is_in_one_place_and_cited() -> None:
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    assert "version" not in project
    citation = text_of(ROOT / "CITATION.cff")
    assert re.search(rf"^version: {re.escape(sortition.__version__)}$", citation, re.M)
    [released] = re.findall(r"^date-released: (\d{4}-\d\d-\d\d)$", citation, re.M)
    software = text_of(DOCS / "reference" / "citing.md").partition("@software")[2]
    assert re.findall(r"(?:version|year) += \{(.*)\}", software) == [sortition.__version__, released[:4]]
    assert f"## [{sortition.__version__}] - {released}" in text_of(ROOT / "CHANGELOG.md")


def test_the_workflows_call_the_targets_that_contributors_call() -> None:
    targets = set(re.findall(r"^([a-z]+):.*## ", text_of(ROOT / "Makefile"), re.MULTILINE))
    assert {"check", "test", "docs", "package", "lowest"} <= targets
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        called = re.findall(r"run: make ([a-z]+)", text_of(workflow))
        assert called, workflow.name
        assert set(called) <= targets
