"""The shape of the source: one name for one thing, and shallow classes."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from importlib import import_module
from itertools import chain
from pathlib import Path

from sortition.samplers.base import BaseSampler

SOURCE = Path(__file__).resolve().parents[1] / "src" / "sortition"
FILES = sorted(SOURCE.rglob("*.py"))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)


def test_no_two_modules_have_one_name() -> None:
    """A package counts by its directory's name, which is what an import statement shows."""
    places = defaultdict(list)
    for path in FILES:
        if path.stem != "__main__":
            places[path.parent.name if path.stem == "__init__" else path.stem].append(module_of(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module_of(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_samplers_are_at_most_two_levels_below_the_base() -> None:
    """Counted along the longest way up, all samplers of the library."""
    for path in (SOURCE / "samplers").glob("*.py"):
        import_module(module_of(path).removesuffix(".__init__"))

    def depth(kind: type) -> int:
        if kind is BaseSampler:
            return 0
        return 1 + max(depth(base) for base in kind.__bases__ if issubclass(base, BaseSampler))

    def below(kind: type) -> list[type]:
        found = [sub for sub in kind.__subclasses__() if sub.__module__.startswith("sortition.")]
        return found + [deeper for sub in found for deeper in below(sub)]

    depths = {kind.__name__: depth(kind) for kind in below(BaseSampler)}
    assert len(depths) >= 15
    assert {name: found for name, found in depths.items() if found > 2} == {}


def test_the_lowest_versions_are_those_of_the_project() -> None:
    """What ``make lowest`` installs is what pyproject.toml promises to users; torch is left out."""
    root = SOURCE.parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = (project["optional-dependencies"][name] for name in ("cli", "experiments", "reports", "flower"))
    promised = dict(each.split(">=") for each in [*project["dependencies"], *chain(*extras)])
    lines = (root / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert set(tested) == {"click", *promised}
    for name, version in promised.items():
        assert f"{tested[name]}.".startswith(f"{version}."), name
