"""The figure on images: federations, data and digests."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from sortition.core.errors import DataError
from sortition.lab.reproduce import QUICK, build, execute, plan
from sortition.lab.reproduce.build import make_problem


class TestImages:
    """What a run of Figure 6 was run on is a part of its settings."""

    @pytest.fixture
    def data(self, tmp_path, monkeypatch):
        """Three made-up sets, and federations small enough for them."""
        monkeypatch.setattr(build, "NUM_IMAGE_CLIENTS", 40)
        for seed, name in enumerate(("mnist", "kmnist", "fashion-mnist")):
            rng = np.random.default_rng(seed)
            for kind, shape in (("images-idx3", (800, 3, 3)), ("labels-idx1", (800,))):
                array = rng.integers(0, 10, shape).astype(np.uint8)
                path = tmp_path / "data" / name / f"t10k-{kind}-ubyte"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(
                    bytes([0, 0, 8, len(shape)]) + np.array(shape, ">i4").tobytes() + bytes(array)
                )
        return tmp_path / "data"

    def plan(self, data):
        scale = replace(QUICK, rounds=2, evaluate_images_every=1)
        return plan(["fig6"], data.parent / "out", variants=("text",), scale=scale, data=data)

    def test_runs_on_other_images_are_not_taken_for_those_on_these(self, data):
        first = self.plan(data)
        before = execute(first, jobs=1)[0]
        assert self.plan(data).kept == len(first.missing)
        for one, other in (("mnist", "aside"), ("kmnist", "mnist"), ("aside", "kmnist")):
            (data / one).rename(data / other)
        swapped = self.plan(data)
        assert swapped.kept == len(first.missing) // 3  # Fashion-MNIST is as it was
        after = execute(swapped, jobs=1)[0]
        for one, other in zip(before.curves, after.curves, strict=True):
            assert np.array_equal(one.mean, other.mean) is (one.panel == "fashion-mnist")

    def test_two_sets_of_the_same_images_are_refused(self, data):
        shutil.rmtree(data / "kmnist")
        shutil.copytree(data / "mnist", data / "kmnist")
        with pytest.raises(DataError, match="must be different images"):
            self.plan(data)
        assert not (data.parent / "out").exists()

    def test_images_that_change_under_a_run_are_refused(self, data):
        todo = self.plan(data)
        shutil.rmtree(data / "mnist")
        (data / "kmnist").rename(data / "mnist")
        run = next(run for run in todo.missing if run.problem == "mnist")
        with pytest.raises(DataError, match="must be the images of the start"):
            make_problem(run, data)
