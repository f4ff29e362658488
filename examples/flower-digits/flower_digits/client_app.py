"""The client: trains on its own images. The query at the end is optional, see docs/tutorials/flower.md."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_digits import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Some steps of SGD on this client's images, from the model that was sent."""
    config = message.content["config"]
    seed, partition = int(config["seed"]), int(context.node_config["partition-id"])
    images, labels = task.partitions(seed)[partition]
    rng = np.random.default_rng((seed, int(config["server-round"]), partition))
    model = message.content["arrays"]["model"].numpy()
    model = task.train(model, images, labels, rng, int(config["local-steps"]), float(config["learning-rate"]))
    arrays = ArrayRecord({"model": Array(model)})
    trained = int(config["local-steps"]) * min(len(images), task.BATCH)
    metrics = MetricRecord({"num-examples": len(images), "images-trained": trained})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.query()
def who_are_you(message: Message, context: Context) -> Message:
    """Report an identity that is the same in every run, so that a resumed run recognises this client."""
    answer = ConfigRecord({"partition-id": context.node_config["partition-id"]})
    return Message(RecordDict({"identity": answer}), reply_to=message)
