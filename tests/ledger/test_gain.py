"""The gain over uniform sampling: the same figures as the diagnosis has, and the truth where it is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sortition import EmpiricalBayesSampler, FixedSampler, Memory, NormPrivacy, UniformSampler
from sortition.cli.commands import app
from sortition.lab.diagnosis.findings import ADAPTIVE, UNIFORM
from sortition.lab.diagnosis.recorded_run import drawn_rounds, estimates, measure_run
from sortition.ledger import open_run, read_run
from sortition.ledger import tally as tally_module
from sortition.ledger.gain import PresentClients, gain_of
from sortition.ledger.summary import summarise
from sortition.ledger.tally import Tally
from tests.ledger.helpers import CLIENTS, COHORT_SIZE, norms_of, own, play

SIZES = np.arange(1.0, CLIENTS + 1) / np.sum(np.arange(1.0, CLIENTS + 1))


def learner(**settings: Any) -> EmpiricalBayesSampler:
    return EmpiricalBayesSampler(
        num_clients=CLIENTS, cohort_size=COHORT_SIZE, client_weights=SIZES, **settings
    )


def gain(path: Path) -> Any:
    with read_run(path) as record:
        return summarise(record).gain


def variances(path: Path, *, inclusion: bool) -> tuple[Any, Any]:
    """Of the tally, for the rounds with a reply."""
    with read_run(path) as record:
        tally, changes = (
            Tally(PresentClients(record), COHORT_SIZE, inclusion=inclusion),
            [*record.memberships()],
        )
        for event in record.events():
            if event.kind == "drawn":
                while changes and changes[0].round_index <= event.round_index:
                    tally._present.change(changes.pop(0))
                tally.add_cohort(event.round_index, event.payload, event.time)
            elif event.kind == "observed":
                tally.add_feedback(event.round_index, event.payload)
        own, uniform = tally.variances()
    return own[np.isfinite(own)], uniform[np.isfinite(own)]


@pytest.mark.parametrize(
    ("design", "place"), [("fixed_size", 0), ("independent", 0), ("with_replacement", 1)]
)
def test_each_round_is_what_the_diagnosis_estimates(path: Path, design: str, place: int) -> None:
    """With silent and unavailable clients, open rounds, joins of both kinds, and leaves."""
    with open_run(path, lambda: learner(design=design)) as run:
        play(run, 6)
        run.add_clients(2, client_weights=[0.5, 0.25])
        play(run, 4)
        waiting = run.draw(np.arange(5, 20))
        run.remove_clients([0, int(waiting.clients[0]), CLIENTS])
        run.add_clients(1)
        play(run, 5)
        run.observe(waiting, norms_of(waiting))
        silent = run.draw()
        run.observe(silent, np.full(len(silent), np.nan))
        play(run, 2)
        run.draw()
    with read_run(path) as record:
        found = [estimates(drawn, COHORT_SIZE) for drawn in drawn_rounds(record, COHORT_SIZE)]
    assert len(found) == 18
    own, uniform = variances(path, inclusion=place == 0)
    assert uniform == pytest.approx([one["uniform"][place] for one in found], rel=1e-12)
    if place == 0:  # with replacement the diagnosis takes no probability of being drawn above 1
        assert own == pytest.approx([one["run"][place] for one in found], rel=1e-12)
    assert gain(path).ratio == pytest.approx(gain_of(own, uniform, COHORT_SIZE).ratio, rel=1e-12)


def test_the_ratio_is_that_of_the_diagnosis(path: Path) -> None:
    with open_run(path, learner) as run:
        play(run, 123)
    with read_run(path) as record:
        assert gain(path).ratio == pytest.approx(measure_run(record).ratio(ADAPTIVE), rel=1e-12)
    assert gain(path).rounds == 123


def test_uniform_sampling_gains_nothing(path: Path) -> None:
    with open_run(
        path, lambda: UniformSampler(num_clients=CLIENTS, cohort_size=COHORT_SIZE, client_weights=SIZES)
    ) as run:
        play(run, 12)
    found = gain(path)
    assert (found.ratio, *found.interval) == pytest.approx((1.0, 1.0, 1.0), rel=1e-12)


def test_the_truth_is_in_the_interval(path: Path) -> None:
    r"""With replacement from a fixed p, norms that stay: sum a/p over M sum a.

    An interval misses the truth in about one of 20 seeds; this one does not.
    """
    norms = np.exp(np.sin(1.7 * np.arange(CLIENTS)))
    feedback = (norms / CLIENTS) ** 2
    p = (0.5 * norms / norms.sum()) + 0.5 / CLIENTS

    def fixed() -> FixedSampler:
        return FixedSampler(num_clients=CLIENTS, cohort_size=COHORT_SIZE, probabilities=p, seed=1)

    with open_run(path, fixed) as run:
        for _ in range(60):
            cohort = run.draw()
            run.observe(cohort, norms[cohort.clients])
    truth = np.sum(feedback / p) / (CLIENTS * feedback.sum())
    found = gain(path)
    low, high = found.interval
    assert truth < 0.95
    assert low < truth < high
    assert low < found.ratio < high
    assert high - low < 0.5


def test_few_rounds_have_no_interval(path: Path) -> None:
    with open_run(path, learner) as run:
        assert "no round has a reply yet" in gain(path).in_words()
        play(run, 9)
        assert gain(path).interval is None
        assert "too few for an interval" in gain(path).in_words()
        play(run, 1)
        assert gain(path).interval is not None


def test_why_it_is_not_known(path: Path) -> None:
    def private() -> EmpiricalBayesSampler:
        return learner(privacy=NormPrivacy(norm_bound=2.0, noise_multiplier=1.0))

    with open_run(path, private) as run:
        play(run, 12)
    assert gain(path).in_words() == "not shown"
    assert gain(path).short() == "-"
    other = path.with_name("own.db")
    with open_run(other, own) as run:
        play(run, 12)
    assert "does not say the client weights" in gain(other).in_words()
    everybody = path.with_name("everybody.db")
    with open_run(everybody, lambda: EmpiricalBayesSampler(num_clients=3, cohort_size=3)) as run:
        play(run, 12)
    assert "no variance" in gain(everybody).in_words()


def test_norms_beyond_a_double_are_left_out(path: Path) -> None:
    with open_run(path, lambda: UniformSampler(num_clients=CLIENTS, cohort_size=COHORT_SIZE)) as run:
        play(run, 12)
        cohort = run.draw()
        run.observe(cohort, np.full(len(cohort), 1e300))
    assert gain(path).rounds == 12


def test_a_million_million_clients_take_no_memory(path: Path) -> None:
    with open_run(path, lambda: EmpiricalBayesSampler(num_clients=10**12, cohort_size=COHORT_SIZE)) as run:
        play(run, 10)
    assert gain(path).ratio is not None


def test_show_and_report_tell_it(path: Path) -> None:
    with open_run(path, learner) as run:
        play(run, 30)
    words = gain(path).in_words()
    assert words.startswith("sampling variance x0.")
    shown = CliRunner().invoke(app, ["runs", "show", str(path)], env={"COLUMNS": "200"}).output
    assert words in shown
    pytest.importorskip("vl_convert")
    assert CliRunner().invoke(app, ["report", str(path)]).exit_code == 0
    assert words in path.with_name("run.db.html").read_text()


def test_a_gain_beside_a_memory_says_so(path: Path) -> None:
    """The norms of such a run are those of residuals."""
    memory = Memory(num_parameters=2, num_clients=CLIENTS)
    with open_run(path, learner) as run:
        for _ in range(12):
            cohort = run.draw()
            run.attach(
                cohort.round_index, "server", {f"memory.{k}": v for k, v in memory.state_dict().items()}
            )
            run.observe(cohort, norms_of(cohort))
    found = gain(path)
    assert found.residuals
    assert "beside the same memory" in found.in_words()
    assert found.short().endswith("] (memory)")


def test_sums_are_those_of_a_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client by client, in batches of any length."""
    with open_run(path, lambda: learner(design="with_replacement")) as run:
        play(run, 40)
    expected = None
    for batch, marked in ((1, 2**26), (3000, 0), (2**26, 2**26)):
        monkeypatch.setattr(tally_module, "BATCH", batch)
        monkeypatch.setattr(tally_module, "LARGEST_MARKED", marked)
        with read_run(path) as record:
            found = summarise(record)
            rounds = [*record.rounds()]
        draws: dict[int, int] = {}
        norms: dict[int, list[float]] = {}
        failures: dict[int, int] = {}
        for place, each in enumerate(rounds):
            assert each.norms is not None
            for client, count, norm in zip(each.cohort.clients, each.cohort.counts, each.norms, strict=True):
                draws[client] = draws.get(client, 0) + count
                failures[client] = failures.get(client, 0) + np.isnan(norm)
                if not np.isnan(norm):
                    norms.setdefault(client, []).insert(0, norm)
            counts = np.array([*draws.values()])
            assert found.seen_by_round[place] == len(draws)
            assert found.effective_by_round[place] == pytest.approx(counts.sum() ** 2 / np.sum(counts**2))
            assert found.norms_by_round[place] == pytest.approx(np.nanmedian(each.norms))
        for client in range(CLIENTS):
            own = found.clients.of(client)
            assert (own.draws, own.failures) == (draws.get(client, 0), failures.get(client, 0))
            assert own.norms == tuple(norms.get(client, [])[:3])
            if client in draws:
                last = next(r.cohort for r in reversed(rounds) if client in r.cohort.clients)
                assert own.probability == last.probabilities[last.clients == client][0]
        assert expected in (None, list(found.clients))
        expected = list(found.clients)


def test_groups_of_large_slots() -> None:
    slots = np.random.default_rng(0).integers(0, 9, 200) * 70_001
    order, heads, group = tally_module._grouped(slots)
    assert order.tolist() == np.argsort(slots, kind="stable").tolist()
    assert slots[order][heads].tolist() == np.unique(slots).tolist()
    assert np.array_equal(np.unique(slots)[group], slots[order])


def test_lies_are_no_gain(path: Path) -> None:
    """Where all are alike but five that lie, draws are noisier than uniform ones: about 1 / (1 - 0.45).

    By the norms as they were reported, the variance would be a twelfth.
    """
    with open_run(path, lambda: EmpiricalBayesSampler(num_clients=100, cohort_size=5)) as run:
        for _ in range(300):
            cohort = run.draw()
            run.observe(cohort, np.where(cohort.clients < 5, 1e6, 1.0 + 0.1 * (cohort.clients % 3)))
    found = gain(path)
    with read_run(path) as record:
        cohorts = [round_.cohort for round_ in record.rounds()]
    draws = sum(int(cohort.counts[cohort.clients < 5].sum()) for cohort in cohorts)
    assert 1.4 < found.ratio < 2.0
    assert f"without the 5 suspects, who took {draws} of 1500 draws, 95%" in found.in_words()


def test_the_diagnosis_leaves_out_the_suspects(path: Path) -> None:
    """It promised to save 73% to 92% of the rounds of such a run."""
    with open_run(path, lambda: EmpiricalBayesSampler(num_clients=100, cohort_size=5)) as run:
        for _ in range(200):
            cohort = run.draw()
            run.observe(cohort, np.where(cohort.clients < 5, 1e6, 1.0 + 0.1 * (cohort.clients % 3)))
    with read_run(path) as record:
        noise = measure_run(record)
    assert noise.sampling[ADAPTIVE].sum() > 1.2 * noise.sampling[UNIFORM].sum()
    assert any("5 clients were clipped" in note for note in noise.notes)


def test_an_id_that_no_array_can_mark() -> None:
    """Of a forged row; the small ids of the rows after it had a mark each up to the largest of all."""
    table = tally_module.ClientTable()
    assert table.slots_of(np.array([3, 2**62])).tolist() == [0, 1]
    assert table.slots_of(np.array([5, 3])).tolist() == [1, 0]
    assert len(table) == 3


def test_a_default_sampler_that_learns_from_rounds_with_few_online(path: Path) -> None:
    """Clients that are alike: by shares of those online it had 2.9 times the variance of uniform draws."""
    rng = np.random.default_rng(0)
    with open_run(path, lambda: UniformSampler(num_clients=200, cohort_size=10, design="fixed_size")) as run:
        for t in range(120):
            online = np.sort(rng.choice(200, 20, replace=False)) if t % 2 else np.arange(200)
            cohort = run.draw(available=online)
            run.observe(cohort, np.exp(0.3 * rng.standard_normal(len(cohort))))
    with read_run(path) as record:
        noise = measure_run(record)
    assert noise.sampling[ADAPTIVE].sum() == pytest.approx(noise.sampling[UNIFORM].sum(), rel=0.05)
