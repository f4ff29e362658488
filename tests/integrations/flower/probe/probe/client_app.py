"""A client as any other: it knows nothing of adaptive sampling, unless it is to hold a memory."""

import os
import time
from pathlib import Path
from uuid import uuid4

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

if os.environ.get("PROBE_MEMORY") == "clients":
    from sortition.integrations.flower import remember_updates

    app = ClientApp(mods=[remember_updates])
elif os.environ.get("PROBE_SECURE"):
    from flwr.client.mod import secaggplus_mod

    from sortition.integrations.flower import weigh_update

    app = ClientApp(mods=[secaggplus_mod, weigh_update])
else:
    app = ClientApp()

if os.environ.get("PROBE_SECURE") or os.environ.get("PROBE_ANSWERS"):

    @app.query()
    def size(message: Message, context: Context) -> Message:
        """Who it is, and its number of examples. Each query leaves a file."""
        partition = int(context.node_config["partition-id"])
        (Path(os.environ["SORTITION_TEST_HOME"]) / "notes" / f"asked-{partition}-{uuid4()}").touch()
        answer = ConfigRecord({"partition-id": partition, "num-examples": partition + 1})
        return Message(RecordDict({"identity": answer}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Halfway to this client's number; client p has p + 1 examples. Every seventh one fails."""
    partition, config = int(context.node_config["partition-id"]), message.content["config"]
    notes, server_round = Path(str(config["notes"])), config["server-round"]
    while (notes / f"hold-{partition}").exists():
        (notes / f"waiting-{partition}-{server_round}").touch()
        time.sleep(0.1)
    time.sleep(float(config["pause"]))
    if partition % 7 == 6:
        raise ValueError("this client always fails")
    model = message.content["arrays"]["model"].numpy()
    moved = model + np.float32(0.5) * (np.float32(partition) - model)
    arrays = ArrayRecord({"model": Array(moved), "batches": Array(np.array(10 * partition))})
    metrics = MetricRecord({"num-examples": partition + 1, "partition": partition})
    if os.environ.get("PROBE_GARBAGE") and partition % 7 in (3, 4, 5):
        garbage = {
            3: {"model": Array("float32", (3,), "numpy.ndarray", b"garbage"), "batches": arrays["batches"]},
            4: {"model": arrays["model"]},
            5: {"model": Array(moved + np.float32("nan")), "batches": arrays["batches"]},
        }
        arrays = ArrayRecord(garbage[partition % 7])
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """The loss of client p is p."""
    partition = int(context.node_config["partition-id"])
    metrics = MetricRecord({"num-examples": partition + 1, "loss": float(partition)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
