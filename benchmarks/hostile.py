"""What hostile states and files are taken for: the long campaigns behind docs/hostile-clients.md.

    python benchmarks/hostile.py states [--rounds 12] [--seed 0] [--mutations 40]

``tests/hostile`` runs small ones. A *state* is one of a sampler that has learnt for a while, with one entry
changed. It must be refused by a StateError that changes nothing, or be a distribution, and stay one while the
run goes on.
"""

from __future__ import annotations

import argparse
import faulthandler
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    DoublingOSMDSampler,
    EmpiricalBayesSampler,
    FixedSampler,
    Guard,
    KVibSampler,
    MABSSampler,
    NormPrivacy,
    OptimalSampler,
    OSMDSampler,
    PortfolioSampler,
    ProportionalSampler,
    StateError,
    UniformSampler,
    VRBSampler,
)
from sortition.ledger.encoding import pack

M, K = 12, 3
COMMON: dict[str, Any] = {"num_clients": M, "cohort_size": K}
WEIGHTS = np.arange(1.0, M + 1.0) / sum(range(1, M + 1))
MAKERS: dict[str, Callable[[], Any]] = {
    "uniform": lambda: UniformSampler(**COMMON),
    "proportional": lambda: ProportionalSampler(**COMMON, client_weights=WEIGHTS),
    "fixed": lambda: FixedSampler(**COMMON, probabilities=WEIGHTS),
    "osmd": lambda: OSMDSampler(**COMMON, learning_rate=0.1, guard=Guard()),
    "adaptive-osmd": lambda: AdaptiveOSMDSampler(**COMMON, num_rounds=20, rate_scale=30.0),
    "doubling-osmd": lambda: DoublingOSMDSampler(**COMMON, client_weights=WEIGHTS),
    "mabs": lambda: MABSSampler(**COMMON, num_rounds=20),
    "vrb": lambda: VRBSampler(**COMMON, client_weights=WEIGHTS),
    "avare": lambda: AvareSampler(**COMMON, guard=Guard()),
    "k-vib": lambda: KVibSampler(**COMMON, num_rounds=20),
    "optimal": lambda: OptimalSampler(**COMMON),
    "empirical-bayes": lambda: EmpiricalBayesSampler(**COMMON),
    "private": lambda: EmpiricalBayesSampler(**COMMON, privacy=NormPrivacy(1.0, 0.5), guard=None),
    "portfolio": lambda: PortfolioSampler(experts=[VRBSampler(**COMMON), AvareSampler(**COMMON)]),
}
NUMBERS: tuple[Any, ...] = (
    np.nan, np.inf, -np.inf, 0, -1, 0.5, 1e308, -1e308, 5e-324, 1e-300, 700.0, -700.0, 1e6,
    2**53, 2**62, 2**63, 2**64, 10**400, True, None, "x", "", [], np.zeros(0), np.zeros((2, 2)),
    np.array("x"),
)  # fmt: skip
ELEMENTS = (
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -1.0,
    0.5,
    1e308,
    -1e308,
    5e-324,
    1e-300,
    700.0,
    -700.0,
    1e6,
    2.0**62,
)


def play(sampler: Any, rounds: int, rng: np.random.Generator) -> None:
    """Rounds with norms of several scales, silence, a client that joins and one that leaves."""
    for index in range(rounds):
        if isinstance(sampler, OptimalSampler):
            sampler.reveal(rng.lognormal(0.0, 2.0, sampler.num_ids))
        cohort = sampler.draw()
        norms = rng.lognormal(0.0, 2.0, len(cohort))
        norms[rng.random(len(cohort)) < 0.1] = np.nan
        sampler.observe(cohort, norms)
        if index == rounds // 2:
            sampler.add_clients(2)
            sampler.remove_clients([1])


def mutations(
    state: dict[str, Any], rng: np.random.Generator, elements: int
) -> Iterator[tuple[str, str, Any]]:
    """Names of entries, what is done to them, and their new values; a single element of an array at a time."""
    for name, value in state.items():
        for number in NUMBERS:
            yield name, f"{number!r:.20}", number
        if not isinstance(value, np.ndarray):
            continue
        yield name, "shorter", value[:-1]
        yield name, "twice", np.concatenate((value, value))
        yield name, "other type", value.astype(bool if value.dtype == np.float64 else np.float64)
        if not value.size:
            yield name, "one more", np.concatenate((value, np.ones((1, *value.shape[1:]), value.dtype)))
            continue
        yield name, "reversed", value[::-1].copy()
        yield name, "all zero", np.zeros_like(value)
        yield name, "scaled", value * 10
        yield name, "negated", -value
        for _ in range(elements):
            changed, element = value.copy(), rng.choice(ELEMENTS)
            place = tuple(int(rng.integers(length)) for length in value.shape)
            with np.errstate(invalid="ignore"):
                changed[place] = np.float64(element).astype(value.dtype)
            yield name, f"{element:g} at {place}", changed


def fault(sampler: Any, rng: np.random.Generator, rounds: int) -> str:
    """What is wrong with a sampler as it goes on; "" for nothing."""
    for _ in range(rounds):
        p = sampler.probabilities()
        if not (np.all(np.isfinite(p)) and p.min() >= 0.0 and abs(p.sum() - 1.0) < 1e-6):
            return f"probabilities from {p.min():.3g} to {p.max():.3g} that sum to {p.sum():.6g}"
        if isinstance(sampler, OptimalSampler):
            sampler.reveal(np.where(sampler._here(), rng.lognormal(size=sampler.num_ids), 0.0))
        cohort = sampler.draw()
        if not (np.all(np.isfinite(cohort.weights)) and np.all(cohort.weights >= 0.0)):
            return f"weights {cohort.weights}"
        sampler.observe(cohort, rng.lognormal(0.0, 1.0, len(cohort)))
    return ""


def judge(name: str, rounds: int, seed: int, elements: int) -> Iterator[tuple[str, str, str]]:
    """For each mutation: the entry, what was done, and "refused", "fine" or what went wrong."""
    rng = np.random.default_rng(seed)
    trained, fresh = MAKERS[name](), MAKERS[name]()
    play(trained, rounds, rng)
    state, untouched = trained.state_dict(), pack(fresh.state_dict())
    for entry, change, value in mutations(state, rng, elements):
        faulthandler.dump_traceback_later(20.0, exit=True)  # a hang within a kernel can't be interrupted
        target = MAKERS[name]()
        before = pack(target.state_dict()) if "private" in name else untouched
        try:
            target.load_state_dict({**state, entry: value})
        except StateError:
            same = pack(target.state_dict()) == before
            verdict = "refused" if same else "refused, but not without a trace"
        except Exception as error:
            verdict = f"raw {error!r:.200}"
        else:
            try:
                verdict = fault(target, np.random.default_rng(0), 4) or "fine"
            except Exception as error:
                verdict = f"later {error!r:.200}"
        yield entry, change, verdict
    faulthandler.cancel_dump_traceback_later()


def main() -> None:
    """Run a campaign, and print what went wrong and how much was tried."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("campaign", choices=["states"])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutations", type=int, default=40, help="elements of each array that are changed")
    parser.add_argument("--samplers", default=",".join(MAKERS))
    options = parser.parse_args()
    totals: Counter[str] = Counter()
    for name in options.samplers.split(","):
        counts: Counter[str] = Counter()
        for entry, change, verdict in judge(name, options.rounds, options.seed, options.mutations):
            counts[verdict if verdict in ("refused", "fine") else "wrong"] += 1
            if verdict not in ("refused", "fine"):
                print(f"{name:<16} {entry} <- {change}: {verdict}", flush=True)
        print(f"{name:<16} {dict(counts)}", flush=True)
        totals += counts
    print(f"in all {sum(totals.values())}: {dict(totals)}")


if __name__ == "__main__":
    main()
