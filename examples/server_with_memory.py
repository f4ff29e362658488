"""A whole server with a memory: clients offline and silent, updates clipped, and nothing lost by a crash.

    python examples/server_with_memory.py run.db [--rounds 200]

Stop it at any time and start it again: it continues where it was, to the bit. The clients are simulated:
least squares, each with its own data. Your server replaces ``online`` and ``train``.
"""

from __future__ import annotations

import argparse

import numpy as np

from sortition import Memory, default_sampler
from sortition.ledger import open_run

CLIENTS, DIMENSION, COHORT, STEP = 60, 20, 6, 0.3
LONGEST = 10.0  # no update may be longer than this many times the median of the last lengths

rng = np.random.default_rng(0)
sizes = np.round(np.exp(rng.normal(4.0, 1.0, CLIENTS)))
features = rng.normal(size=(CLIENTS, 50, DIMENSION))
truths = rng.normal(size=DIMENSION) + 0.5 * rng.normal(size=(CLIENTS, DIMENSION))
targets = np.einsum("cnd,cd->cn", features, truths)


def online(round_index: int) -> np.ndarray:
    """Who can be asked in this round."""
    return np.flatnonzero(np.random.default_rng([1, round_index]).random(CLIENTS) < 0.7)


def train(model: np.ndarray, clients: np.ndarray, round_index: int) -> np.ndarray:
    """The clients' updates, here their gradients; a row of nan is no reply."""
    errors = np.einsum("cnd,d->cn", features[clients], model) - targets[clients]
    updates = np.einsum("cn,cnd->cd", errors, features[clients]) / features.shape[1]
    updates[np.random.default_rng([2, round_index]).random(len(clients)) < 0.05] = np.nan
    return updates


def loss(model: np.ndarray) -> float:
    """Over all data."""
    errors = np.einsum("cnd,d->cn", features, model) - targets
    return float(sizes @ (errors**2).mean(axis=1) / sizes.sum() / 2)


def main() -> None:
    """Train, or continue."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", help="the file of the run")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()

    memory = Memory(num_parameters=DIMENSION, num_clients=CLIENTS)
    model, lengths = np.zeros(DIMENSION), np.full(CLIENTS, np.nan)
    with open_run(options.run, lambda: default_sampler(CLIENTS, COHORT, sizes / sizes.sum())) as run:
        if run.last_observed is not None:  # after a crash: as it was after the last feedback
            memory.load_state_dict(run.attachment(run.last_observed, "memory"))
            found = run.attachment(run.last_observed, "model")
            model, lengths = found["weights"], found["lengths"]
        while run.round_index < options.rounds or run.open_cohorts():
            cohort = run.draw(available=online(run.round_index))  # after a crash: the same cohort again
            updates = train(model, cohort.clients, cohort.round_index)

            # no length of its own may be far above the others'; one that is infinite is no reply
            own = np.linalg.norm(updates, axis=1)
            own[np.isinf(own)] = np.nan
            lengths[cohort.clients] = np.where(np.isnan(own), lengths[cohort.clients], own)
            bound = LONGEST * np.nanmedian(lengths) if np.isfinite(lengths).any() else np.inf
            updates *= (np.minimum(own, bound) / np.maximum(own, 1e-300))[:, None]  # nan stays nan

            # those offline count by what is remembered of them: the sum is not divided
            aggregate, norms = memory.combine(cohort, updates, run.client_weights)
            model = model - STEP * aggregate
            run.attach(cohort.round_index, "memory", memory.state_dict())
            run.attach(cohort.round_index, "model", {"weights": model, "lengths": lengths})
            run.observe(cohort, norms)  # last: if the feedback is there, so is its model
            run.log(loss=loss(model))
            if cohort.round_index % 50 == 49:
                print(f"round {cohort.round_index}: loss {loss(model):.6f}", flush=True)
    least = np.linalg.lstsq(
        (np.sqrt(sizes)[:, None, None] * features).reshape(-1, DIMENSION),
        (np.sqrt(sizes)[:, None] * targets).ravel(),
        rcond=None,
    )[0]
    print(f"loss {loss(model):.6f}, the least possible {loss(least):.6f}")


if __name__ == "__main__":
    main()
