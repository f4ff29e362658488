"""What the README shows runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

README = Path(__file__).parent.parent / "README.md"


def test_the_library_example_runs_and_learns() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    scope: dict[str, object] = {}
    exec(compile(example.replace("print(", "_ = ("), str(README), "exec"), scope)
    p = scope["sampler"].probabilities()  # type: ignore[attr-defined]
    assert p.sum() == np.float64(p.sum()) and abs(p.sum() - 1.0) < 1e-9  # noqa: PT018
    assert p[90:].mean() > 2.0 * p[:10].mean()  # clients with more to say are drawn more often


def test_what_it_links_to_exists() -> None:
    text = README.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert links
    for link in links:
        assert (README.parent / link).exists(), link
