"""The examples run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sortition.lab.problems import idx

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(
    idx.find(idx.IMAGE_SETS["fashion-mnist"], None) is None,
    reason="Fashion-MNIST is not installed (Debian's dataset-fashion-mnist)",
)
def test_small_cnn_on_fashion_mnist():
    pytest.importorskip("torch", reason="the extra torch is not installed")
    command = [sys.executable, str(ROOT / "examples" / "fashion_cnn.py"), "--rounds", "3", "--clients", "40"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "AdaptiveOSMDSampler: loss" in done.stdout


def test_a_server_with_a_memory_continues_where_it_stopped(tmp_path):
    def last_line(run, rounds):
        command = [sys.executable, "-W", "error", str(ROOT / "examples" / "server_with_memory.py"), str(run)]
        done = subprocess.run(
            [*command, "--rounds", str(rounds)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    unbroken = last_line(tmp_path / "unbroken.db", 200)
    assert last_line(tmp_path / "stopped.db", 70) != unbroken
    assert last_line(tmp_path / "stopped.db", 200) == unbroken
    reached, least = (float(word) for word in unbroken.replace(",", "").split() if "." in word)
    assert least <= reached < least + 1e-3


def test_coordinates(monkeypatch):
    """Adaptive sampling needs fewer updates than other orders, and more than an active set."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    import coordinates
    import numpy as np

    def epochs(problem, turns, target):
        problem.reset()
        return int(coordinates.epochs_to(problem, turns, target))

    def of(problem, way):
        return way(problem.size, problem.update, np.random.default_rng(2))

    lasso, svm = coordinates.Lasso(seed=1), coordinates.SupportVectors(seed=1)
    for problem, target in ((lasso, 1e-6), (svm, 1e-4), (coordinates.Kaczmarz(seed=1), 1e-4)):
        others = [
            epochs(problem, of(problem, way), target) for way in (coordinates.permuted, coordinates.uniform)
        ]
        assert epochs(problem, of(problem, coordinates.adaptive), target) < min(others)
    for problem, target in ((lasso, 1e-6), (svm, 1e-4)):
        turns = coordinates.active_set(problem.size, problem.update, np.random.default_rng(2), problem.active)
        found = epochs(problem, turns, target)
        assert found < epochs(problem, of(problem, coordinates.adaptive), target)


def test_flower_digits_refuses_a_sampling_that_is_none(monkeypatch):
    pytest.importorskip("flwr", reason="the extra flower is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.syspath_prepend(ROOT / "examples" / "flower-digits")
    from flower_digits.server_app import SAMPLINGS, check_samplings

    check_samplings(list(SAMPLINGS))
    for wrong in (["adaptive", "bogus"], []):
        with pytest.raises(ValueError, match="samplings"):
            check_samplings(wrong)
