"""A server that notes every round."""

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from sortition.integrations.flower import AdaptiveSampling

app = ServerApp()


class EnoughError(Exception):
    """Nobody needs more rounds."""


def keep_all(records, weighted_by_key) -> MetricRecord:
    """Who replied in this round, and with what weight."""
    metrics = [next(iter(record.metric_records.values())) for record in records]
    return MetricRecord(
        {
            "partitions": [int(each["partition"]) for each in metrics],
            "weighted-examples": [float(each[weighted_by_key]) for each in metrics],
        }
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Some rounds; what was seen goes to notes/rounds.jsonl, one line each, and notes/done."""
    settings, notes = context.run_config, Path(str(context.run_config["notes"]))
    kind = FedAdam if int(settings["cohort-size"]) > 3 else FedAvg
    evaluators = int(settings["evaluators"])
    inner = kind(
        fraction_evaluate=1.0 if evaluators else 0.0,
        min_available_nodes=int(settings["least-clients"]),
        train_metrics_aggr_fn=keep_all,
    )
    memory = {"none": False, "server": True, "clients": "clients"}[str(settings["memory"])]
    strategy = AdaptiveSampling(
        inner,
        cohort_size=int(settings["cohort-size"]),
        memory=memory,
        secure_aggregation=bool(settings["secure"]),
        evaluate_cohort_size=evaluators or None,
        ledger=str(settings["ledger"]) or None,
    )
    metrics: dict[int, MetricRecord] = {}
    aggregate = strategy.aggregate_train

    def noting(server_round, replies):
        arrays, metrics[server_round] = aggregate(server_round, replies)
        return arrays, metrics[server_round]

    strategy.aggregate_train = noting

    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        if server_round:
            line = {
                "round": server_round,
                "nodes": len(list(grid.get_node_ids())),
                "identities": list(strategy.identities),
                "probabilities": strategy.sampler.probabilities().tolist(),
                "model": arrays["model"].numpy().tolist(),
                "types": [array.dtype for array in arrays.values()],
                **dict(metrics[server_round]),
            }
            with (notes / "rounds.jsonl").open("a") as lines:
                lines.write(json.dumps(line) + "\n")
        if (notes / "enough").exists():
            raise EnoughError

    start = {"model": Array(np.zeros(3, dtype=np.float32)), "batches": Array(np.array(0))}

    def on_round(server_round, found, arrays):
        with (notes / "on_round.jsonl").open("a") as lines:
            lines.write(json.dumps({"round": server_round, **found}) + "\n")

    with suppress(EnoughError):
        result = strategy.start(
            grid,
            ArrayRecord(start),
            num_rounds=int(settings["rounds"]),
            timeout=float(settings["timeout"]),
            train_config=ConfigRecord({"notes": str(notes), "pause": float(settings["pause"])}),
            evaluate_fn=evaluate,
            on_round=on_round,
        )
        (notes / "result.json").write_text(
            json.dumps(
                {
                    "train": sorted(result.train_metrics_clientapp),
                    "evaluate": {n: dict(found) for n, found in result.evaluate_metrics_clientapp.items()},
                }
            )
        )
    (notes / "done").touch()
