"""docs/research/paper-map.md is true: what it names exists, and what the paper numbers is named."""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAP = ROOT / "docs" / "research" / "paper-map.md"
PAPER = ROOT.parent / "shared" / "paper.tex"


@dataclass(frozen=True)
class Row:
    number: str
    label: str
    functions: tuple[str, ...]
    tests: tuple[str, ...]
    function_cell: str


def quoted(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def rows(heading: str) -> list[Row]:
    """The rows of the table under a heading."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", MAP.read_text(), re.DOTALL | re.MULTILINE)
    assert section, f"docs/research/paper-map.md has no section called {heading}"
    lines = [line for line in section[1].splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert all(len(row) == 5 for row in cells), "a row has five cells: number, label, what, function, test"
    return [
        Row(number, label.strip("`"), quoted(function), quoted(test), function)
        for number, label, _, function, test in cells
    ]


EQUATIONS, ALGORITHMS, STATEMENTS, OTHERS = (
    rows(heading) for heading in ("Equations", "Algorithms", "Theorems and the like", "What has no number")
)
ALL = [*EQUATIONS, *ALGORITHMS, *STATEMENTS, *OTHERS]


def resolve(name: str) -> object:
    """What a dotted name stands for: a function, a class, or a method of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def names_in(path: Path) -> set[str]:
    """The names of a file's tests, those in classes as Class::name."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


@pytest.mark.parametrize("name", sorted({name for row in ALL for name in row.functions}))
def test_the_function_exists(name: str) -> None:
    assert callable(resolve(name)), f"{name} is not a function or a class"


@pytest.mark.parametrize("test", sorted({test for row in ALL for test in row.tests}))
def test_the_test_exists(test: str) -> None:
    file, _, name = test.partition("::")
    assert name.split("::")[-1].startswith("test_"), f"{test} does not name a test"
    assert name in names_in(ROOT / file), f"{file} has no {name}"


@pytest.mark.parametrize("row", ALL, ids=lambda row: f"{row.number} {row.label}")
def test_a_row_has_a_function_and_a_test_or_says_why_not(row: Row) -> None:
    if row.functions:
        assert row.tests, f"{row.number} names a function and no test"
    else:
        assert row.function_cell.startswith("theory only"), f"{row.number} names nothing"
        assert not row.tests


def test_every_number_is_there_once() -> None:
    assert [row.number for row in EQUATIONS] == [str(n) for n in range(1, 29)]
    assert [row.number for row in ALGORITHMS] == [str(n) for n in range(1, 8)]
    assert [row.number for row in STATEMENTS] == [str(n) for n in range(4, 13)]


def test_every_deviation_is_listed() -> None:
    """The modules that have a paragraph "Deviation:" in a docstring, against the list on the page."""
    section = MAP.read_text().split("## Where we depart\n")[1]
    listed = sorted(re.findall(r"^- `([^`]+)`", section, re.MULTILINE))
    found = []
    for path in sorted((ROOT / "src" / "sortition").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        found += [f"{module}.{name}" for name in deviations(ast.parse(path.read_text()))]
        assert path.read_text().count("Deviation:") == len(deviations(ast.parse(path.read_text()))), (
            f"{path.name}: a deviation belongs into a docstring, one paragraph each"
        )
    assert listed == sorted(found), (
        'every "Deviation:" has a line under "Where we depart" in docs/research/paper-map.md'
    )


def deviations(tree: ast.Module) -> list[str]:
    """The functions and classes with "Deviation:" in their docstring, as Class.method."""
    found = []

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                name = f"{prefix}{child.name}"
                found.extend([name] * (ast.get_docstring(child) or "").count("Deviation:"))
                visit(child, f"{name}.")

    visit(tree, "")
    return found


# Against the source of the paper ---------------------------------------------------------------------------

needs_paper = pytest.mark.skipif(
    not PAPER.exists(), reason="the paper's source (shared/paper.tex beside the checkout) is not here"
)


def main_text() -> str:
    """The paper up to its proofs, Appendix A included, without comments."""
    return re.sub(r"(?<!\\)%.*", "", PAPER.read_text()).split(r"\section{Technical proofs}")[0]


@needs_paper
def test_equations_have_the_papers_numbers_and_labels() -> None:
    """Each numbered environment counts one, in the order of the text."""
    environments = re.findall(r"\\begin\{(equation|multline|align)\}(.*?)\\end\{\1\}", main_text(), re.DOTALL)
    labels = [re.search(r"\\label\{(eq:[^}]+)\}", body) for _, body in environments]
    assert [label and label[1] for label in labels] == [row.label for row in EQUATIONS]


@needs_paper
def test_algorithms_have_the_papers_numbers_and_labels() -> None:
    algorithms = re.findall(r"\\begin\{algorithm\}.*?\\label\{([^}]+)\}", main_text(), re.DOTALL)
    assert algorithms == [row.label for row in ALGORITHMS]


@needs_paper
def test_statements_have_the_papers_numbers_and_labels() -> None:
    """Assumptions, theorems, corollary and propositions share a counter; the last one is among the proofs."""
    text = re.sub(r"(?<!\\)%.*", "", PAPER.read_text())
    begun = re.findall(
        r"\\begin\{(?:theorem|corollary|proposition|assump)\}.*?\\label\{([^}]+)\}", text, re.DOTALL
    )
    assert begun[3:12] == [row.label for row in STATEMENTS]
    assert all(label.startswith("assump:") for label in begun[:3])


@needs_paper
def test_other_places_exist_in_the_paper() -> None:
    for row in OTHERS:
        assert not row.label or rf"\label{{{row.label}}}" in PAPER.read_text()
