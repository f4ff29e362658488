"""What private norms cost in regret: the experiment that the paper's conclusion asks for.

    python benchmarks/privacy_regret.py [--rounds 300] [--repeats 3] [--json FILE]

Handwritten digits over 100 clients, 5 drawn a round. Norms are clipped at C, the median of the honest norms
at the start, and noised with standard deviation sigma C before the sampler sees them; the model is trained
without noise, so that what is measured is the sampler's loss and nothing else. For each sigma: epsilon of a
single reply and of the client that replied most, at delta = 1e-5; the dynamic regret per round,
l_t(p^t) - l_t(p*), over that of uniform sampling; and the final training loss. The epsilons are nominal: C is
taken from the data and the noise from the seed. Every sampler has the guard it has by default: empirical
Bayes ``Guard()``, the others none.
"""

from __future__ import annotations

import argparse
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sortition import AdaptiveOSMDSampler, AvareSampler, EmpiricalBayesSampler, NormPrivacy, UniformSampler
from sortition.core.variance import dynamic_regret, optimal_probabilities, variance_loss
from sortition.lab.algorithms import FedSGD
from sortition.lab.problems.softmax import STEP_SIZE, SoftmaxFederation, digits_federation
from sortition.lab.training import training_rounds

COHORT_SIZE = 5
NOISES = (None, 0.1, 0.5, 1.0, 2.0, 5.0)
SAMPLERS: dict[str, Any] = {
    "uniform": lambda common, rounds: UniformSampler(**common),
    "adaptive-osmd": lambda common, rounds: AdaptiveOSMDSampler(num_rounds=rounds, **common),
    "avare": lambda common, rounds: AvareSampler(**common),
    "empirical-bayes": lambda common, rounds: EmpiricalBayesSampler(**common),
}


@lru_cache
def federation_of(seed: int) -> SoftmaxFederation:
    """The federation of a seed: the same for all runs."""
    return digits_federation(num_clients=100, seed=seed)


def run(name: str, sigma: float | None, rounds: int, seed: int) -> dict[str, float]:
    """One training run: mean regret a round, final loss, privacy spent."""
    federation = federation_of(seed)
    weights = federation.client_weights
    bound = float(np.median(federation.all_norms(federation.initial_model(), 0)))
    privacy = None if sigma is None else NormPrivacy(bound, sigma, fresh_noise=False)
    common = {
        "num_clients": federation.num_clients,
        "cohort_size": COHORT_SIZE,
        "client_weights": weights,
        "seed": seed,
        "privacy": privacy,
    }
    sampler = SAMPLERS[name](common, rounds)
    losses, best, training = [], [], []
    for done in training_rounds(sampler, federation, FedSGD(STEP_SIZE), rounds, measure_every=5):
        if done.probabilities is not None and done.norms is not None:
            feedback = (weights * done.norms) ** 2
            losses.append(variance_loss(done.probabilities, feedback, COHORT_SIZE))
            best.append(variance_loss(optimal_probabilities(feedback), feedback, COHORT_SIZE))
        if done.index >= rounds - rounds // 10:
            training.append(federation.loss(done.state))
    spent = None if privacy is None else sampler.privacy_spent(1e-5)
    return {
        "regret": float(dynamic_regret(np.array(losses), np.array(best))[-1] / len(losses)),
        "loss": float(np.mean(training)),
        "epsilon_per_reply": np.inf if spent is None else spent.epsilon_per_reply,
        "replies": 0 if spent is None else spent.most_replies,
        "epsilon": np.inf if spent is None else spent.epsilon,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows, baseline = [], 1.0
    print(
        f"{'sampler':18}{'sigma':>6}{'eps/reply':>11}{'replies':>9}{'eps':>9}{'regret/uniform':>16}{'loss':>8}"
    )
    for name in SAMPLERS:
        for sigma in NOISES if name != "uniform" else (None,):
            runs = [run(name, sigma, options.rounds, seed) for seed in range(options.repeats)]
            mean = {key: float(np.mean([one[key] for one in runs])) for key in runs[0]}
            baseline = mean["regret"] if name == "uniform" else baseline
            shown = "none" if sigma is None else f"{sigma:g}"
            print(
                f"{name:18}{shown:>6}{mean['epsilon_per_reply']:>11.3g}{mean['replies']:>9.0f}"
                f"{mean['epsilon']:>9.3g}{mean['regret'] / baseline:>16.3f}{mean['loss']:>8.3f}",
                flush=True,
            )
            rows.append({"sampler": name, "sigma": sigma, **mean, "relative": mean["regret"] / baseline})
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1).replace("Infinity", "null") + "\n")


if __name__ == "__main__":
    main()
