"""What is kept beside the rounds: a resumed run finds the model that its last feedback belongs to."""

from __future__ import annotations

import os
import shutil
import signal
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sortition import ConfigurationError, LedgerError, Memory
from sortition.core.state import constant
from sortition.ledger import open_run, read_run, verify_run
from tests.helpers import same_state
from tests.ledger.helpers import CLIENTS, crash, make, norms_of


def test_attachments(path: Path) -> None:
    with open_run(path, make) as run:
        for round_index in range(4):
            run.draw()
            run.attach(round_index, "model", {"w": np.full((2, 3), round_index, dtype=np.float32), "n": 7})
        run.attach(1, "inner", {"text": "ü", "flag": True, "nothing": None, "x": float("nan")})
        assert run.attachment(1, "model") is None  # the newest two are kept
    with open_run(path, make) as run:
        found = run.attachment(3, "model")
        assert found is not None
        assert found["n"] == 7
        assert found["w"].dtype == np.float32
        assert np.array_equal(found["w"], np.full((2, 3), 3.0))
        inner = run.attachment(1, "inner")
        assert inner is not None
        assert inner["text"] == "ü"
        assert inner["flag"] is True
        assert inner["nothing"] is None
        assert np.isnan(inner["x"])
    assert verify_run(path).attachments == 3


def answered(run: Any, cohort: Any) -> None:
    """Attached and observed, as the documented loop does."""
    run.attach(cohort.round_index, "model", {"w": cohort.round_index})
    run.observe(cohort, norms_of(cohort))


@pytest.mark.parametrize("snapshot_every", [1, 1000])
def test_cohorts_answered_out_of_order_lose_no_model(path: Path, snapshot_every: int) -> None:
    """The newest attachment is the one that was written last, whatever round it belongs to."""
    run = open_run(path, make, snapshot_every=snapshot_every)
    for cohort in reversed([run.draw() for _ in range(4)]):
        answered(run, cohort)
        assert run.last_observed == cohort.round_index
        crash(run)
        run = open_run(path, make, snapshot_every=snapshot_every)
        assert run.last_observed == cohort.round_index
        assert run.attachment(cohort.round_index, "model") == {"w": cohort.round_index}
    assert run.attachment(1, "model") == {"w": 1}
    assert run.attachment(2, "model") is None
    run.close()
    assert verify_run(path).replayed


def test_the_model_of_the_last_feedback_stays(path: Path) -> None:
    """However many models were attached since by processes that died before their feedback."""
    run = open_run(path, make)
    answered(run, run.draw())
    for _ in range(3):
        run.draw()
    for round_index in (3, 1, 2):
        run.attach(round_index, "model", {"w": round_index})
        crash(run)
        run = open_run(path, make)
        assert run.last_observed == 0
        assert run.attachment(0, "model") == {"w": 0}
    run.close()


def test_a_clock_that_goes_back_does_not_matter(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10**18, 10**17, 10**16, 10**15])
    with open_run(path, make) as run:
        for _ in range(8):
            run.draw()
        monkeypatch.setattr(time, "time_ns", lambda: next(clock))
        for round_index in (7, 3, 5, 1):
            run.attach(round_index, "model", {"w": round_index})
        monkeypatch.undo()
        kept = [n for n in range(9) if run.attachment(n, "model") is not None]
    assert kept == [1, 5]


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda run: run.attachment("x", "model"), "round_index .*'x'"),
        (lambda run: run.attachment(0, 3), "name .*3"),
        (lambda run: run.attach(0, 3, {}), "name .*3"),
        (lambda run: run.attach("x", "model", {}), "round_index .*'x'"),
        (lambda run: run.attach(55, "model", {}), "round_index .*55"),
        (lambda run: run.attach(0, "model", 3), "arrays .*3"),
        (lambda run: run.attach(0, "model", {"w": [1]}), "w .*list"),
    ],
)
def test_arguments_that_make_no_sense(path: Path, call: Any, argument: str) -> None:
    with open_run(path, make) as run:
        with pytest.raises(ConfigurationError, match=argument):
            call(run)
        assert [file.name for file in path.with_name("run.db.d").iterdir()] == ["lock"]


def test_the_next_round_can_be_attached_to_before_it_is_drawn(path: Path) -> None:
    """As the Flower strategy does with newcomers."""
    with open_run(path, make) as run:
        run.draw()
        run.attach(run.round_index, "clients", {"n": 1})
        assert run.attachment(1, "clients") == {"n": 1}
        with pytest.raises(ConfigurationError, match=r"round_index .*2"):
            run.attach(2, "clients", {"n": 1})


def test_what_a_killed_writer_had_not_finished_is_removed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = os.fork()
    if child == 0:  # dies where the snapshot is synced, before it has its name
        try:
            run = open_run(path, make, snapshot_every=1)
            monkeypatch.setattr(os, "fsync", lambda descriptor: os.kill(os.getpid(), signal.SIGKILL))
            run.draw()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    directory = path.with_name(path.name + ".d")
    assert [file.name for file in directory.glob("*.unfinished")] == ["snapshot-000000001.unfinished"]
    with open_run(path, make) as run:
        assert not list(directory.glob("*.unfinished"))
        assert run.draw().round_index == 0


def documented_loop() -> str:
    """The first example of docs/research/ledger.md, until whatever round is asked for."""
    page = (Path(__file__).parents[2] / "docs" / "research" / "ledger.md").read_text()
    block = page[page.index("    from sortition import") : page.index("`open_run` gives")]
    return textwrap.dedent(block).replace("< 500", "< until")


def test_the_documented_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """It begins, continues from its model, and starts the model anew where that was lost."""
    monkeypatch.chdir(tmp_path)

    def train(model: int, cohort: Any) -> tuple[int, Any]:
        return model + 1, norms_of(cohort)

    def loop(until: int) -> int:
        names: dict[str, Any] = {"train": train, "initial_model": lambda: 0, "loss_of": float, "until": until}
        exec(documented_loop(), names)
        return int(names["model"])

    assert loop(5) == 5
    assert loop(7) == 7
    assert capsys.readouterr().out == ""
    shutil.rmtree(tmp_path / "run.db.d")
    assert loop(9) == 2
    assert "no model is left" in capsys.readouterr().out
    assert verify_run(tmp_path / "run.db").rounds == 9


# Constant arrays: written once ------------------------------------------------------------------------


def constants_in(path: Path) -> dict[str, list[str]]:
    """The entries of each file of constants, by its name."""
    directory = path.with_name(path.name + ".d")
    with read_run(path) as record:
        files = record._files()
    return {
        file.name: sorted(files.read("constants_memory", int(file.name[-9:])))
        for file in sorted(directory.glob("constants_memory-*"))
    }


def row(value: float) -> Any:
    return constant(np.full(1000, value))


def test_a_constant_array_is_written_once(path: Path) -> None:
    one, two, three = row(1.0), row(2.0), row(3.0)
    run = open_run(path, make)
    run.attach(0, "memory", {"a": one, "b": two, "n": 1})
    answered(run, run.draw())
    run.attach(1, "memory", {"a": one, "b": three, "n": 2})
    assert constants_in(path) == {
        "constants_memory-000000000": ["a", "b"],
        "constants_memory-000000001": ["b"],
    }
    for expected in ({"a": one, "b": two, "n": 1}, {"a": one, "b": three, "n": 2}):
        found = run.attachment(expected["n"] - 1, "memory")
        assert found is not None
        assert same_state(found, expected)
    crash(run)
    with open_run(path, make) as run:
        run.attach(1, "memory", {**(run.attachment(1, "memory") or {}), "c": two})
        assert constants_in(path)["constants_memory-000000002"] == ["c"]  # what was read is known too
        found = run.attachment(1, "memory")
        assert found is not None
        assert same_state(found, {"a": one, "b": three, "c": two, "n": 2})
    assert verify_run(path).attachments == 3


def test_only_the_same_array_counts_as_written(path: Path) -> None:
    """Not one that is equal, nor one that was computed from a constant: that can still change."""
    first = row(1.0)
    changing = first + 0.0
    with open_run(path, make) as run:
        for turn in range(3):
            changing += 1.0
            run.attach(0, "memory", {"a": row(1.0) if turn else first, "b": changing})
            found = run.attachment(0, "memory")
            assert found is not None
            assert found["b"][0] == 2.0 + turn
            assert len(constants_in(path)) == 1  # the one before is not needed any more
        assert list(constants_in(path)) == ["constants_memory-000000002"]


def test_constants_stay_while_an_attachment_needs_them_and_no_longer(path: Path) -> None:
    """Rows change two by two: all can be read at any time, and files take about twice their bytes."""
    rng = np.random.default_rng(0)
    rows = {f"row.{client}": row(client) for client in range(20)}
    before, sizes, written = dict(rows), [], []
    run = open_run(path, make)
    for turn in range(90):
        for client in rng.integers(0, 20, size=2):
            rows[f"row.{client}"] = row(turn + client / 100.0)
        files = constants_in(path).keys()
        run.attach(turn, "memory", rows)
        written += [len(own) for name, own in constants_in(path).items() if name not in files]
        with read_run(path) as record:
            assert same_state(record.attachment(turn, "memory") or {}, rows)
            if turn:
                assert same_state(record.attachment(turn - 1, "memory") or {}, before)
        before = dict(rows)
        directory = path.with_name("run.db.d")
        sizes.append(sum(file.stat().st_size for file in directory.glob("constants_memory-*")))
        answered(run, run.draw())
        if turn % 7 == 6:
            crash(run)
            run = open_run(path, make)
            rows = run.attachment(turn, "memory") or {}
    run.close()
    assert len(written) == 90
    assert max(sizes) < 2.7 * 20 * 8000
    assert np.mean(written[1:]) < 5.0  # of 20


def test_what_is_known_of_attachments_goes_with_them(path: Path) -> None:
    """Else a long run would need more and more memory. With constant arrays and without."""
    with open_run(path, make) as run:
        for turn in range(20):
            cohort = run.draw()
            run.attach(turn, "memory", {"a": row(turn)})
            answered(run, cohort)
            run.attachment(turn, "memory")
        files = run._files
        assert {name: sorted(known) for name, known in files._needs.items()} == {
            name: files.numbers(f"attachment_{name}") for name in ("memory", "model")
        }
        assert all(len(known) <= 3 for known in files._needs.values())


def test_arrays_that_are_missing_are_noticed(path: Path) -> None:
    with open_run(path, make) as run:
        run.attach(0, "memory", {"a": row(1.0)})
        run.draw()
        run.attach(1, "memory", {"a": row(2.0)})
        with pytest.raises(ConfigurationError, match=r"\.constants"):
            run.attach(1, "memory", {".constants": "{}"})
    lost = path.with_name("run.db.d") / "constants_memory-000000001"
    lost.unlink()
    with open_run(path, make) as run, pytest.raises(LedgerError, match=r"missing.*attachment\(0"):
        run.attachment(1, "memory")
    with pytest.raises(LedgerError, match="missing"):
        verify_run(path)


@pytest.mark.parametrize("step", ["draw", "combine", "attach", "observe"])
def test_a_run_with_a_memory_continues_to_the_bit(path: Path, tmp_path: Path, step: str) -> None:
    """Stopped after each of the four steps in every round; a round writes the rows that have changed."""

    def server(file: Path, stop: str) -> Memory:
        memory = Memory(num_parameters=40, num_clients=CLIENTS)
        run = open_run(file, make)
        while run.round_index < 25 or run.open_cohorts():
            cohort = run.draw()
            if stop != "draw" or cohort.round_index in crashed:
                updates = np.sin(cohort.clients[:, None] + 0.1 * cohort.round_index + np.arange(40))
                _, norms = memory.combine(cohort, updates, run.client_weights)
                if stop != "combine" or cohort.round_index in crashed:
                    before = constants_in(file)
                    run.attach(cohort.round_index, "memory", memory.state_dict())
                    (new,) = constants_in(file).keys() - before.keys()
                    sizes.append(len(constants_in(file)[new]))
                    if stop != "attach" or cohort.round_index in crashed:
                        run.observe(cohort, norms)
            if stop and cohort.round_index not in crashed:
                crashed.add(cohort.round_index)
                crash(run)
                run, memory = open_run(file, make), Memory(num_parameters=40, num_clients=CLIENTS)
                if run.last_observed is not None:
                    memory.load_state_dict(run.attachment(run.last_observed, "memory") or {})
        run.close()
        return memory

    crashed: set[int] = set()
    sizes: list[int] = []
    expected = server(tmp_path / "unbroken.db", "")
    assert np.mean(sizes) < 2 * 4 < len(expected.state_dict()["clients"])
    sizes.clear()
    assert same_state(server(path, step).state_dict(), expected.state_dict())
    assert np.mean(sizes) < 2 * 4
    assert len(crashed) == 25
