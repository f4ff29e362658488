"""Whoever waits for the compiler is told, once, and nobody else."""

from __future__ import annotations

import io
import sys

import pytest

from sortition import UniformSampler
from sortition.engine import compiling


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def nothing_compiled(monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "_told", False)
    monkeypatch.setattr(compiling, "cache_directory", lambda: tmp_path)
    return tmp_path


def built(monkeypatch, stream) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    for _ in range(2):
        UniformSampler(num_clients=3, cohort_size=1)
    return stream.getvalue()


def test_a_terminal_is_told_once(monkeypatch, nothing_compiled):
    said = built(monkeypatch, Terminal())
    assert said.count("\n") == 1
    assert "compiling kernels, once" in said


def test_a_log_file_is_not(monkeypatch, nothing_compiled):
    assert built(monkeypatch, io.StringIO()) == ""


def test_nor_anybody_when_kernels_are_there(monkeypatch, nothing_compiled):
    (nothing_compiled / "pivotal.draw_fixed_size-12.py311.nbi").touch()
    assert built(monkeypatch, Terminal()) == ""


def test_the_file_that_is_looked_for_is_the_one_that_numba_writes():
    sampler = UniformSampler(num_clients=30, cohort_size=3, design="fixed_size")
    sampler.draw()
    assert compiling.is_compiled()
