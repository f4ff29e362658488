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


def test_flower_digits_refuses_a_sampling_that_is_none(monkeypatch):
    pytest.importorskip("flwr", reason="the extra flower is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.syspath_prepend(ROOT / "examples" / "flower-digits")
    from flower_digits.server_app import SAMPLINGS, check_samplings

    check_samplings(list(SAMPLINGS))
    for wrong in (["adaptive", "bogus"], []):
        with pytest.raises(ValueError, match="samplings"):
            check_samplings(wrong)
