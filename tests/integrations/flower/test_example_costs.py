"""The example counts what a run costs."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

EXAMPLE = Path(__file__).parents[3] / "examples" / "flower-digits"


def message(kind, **records):
    return Message(RecordDict(records), 1, kind)


def num_bytes(messages):
    return sum(record.count_bytes() for each in messages for record in each.content.values())


def test_trainings_images_and_bytes_are_counted_from_the_messages(monkeypatch):
    """Two clients train, a third one fails; a query is sent, but is no training."""
    monkeypatch.syspath_prepend(EXAMPLE)
    from flower_digits.costs import Costs

    asked = [message("train", arrays=ArrayRecord({"w": Array(np.zeros(10))})) for _ in range(3)]
    trained = [
        message("train", metrics=MetricRecord({"num-examples": examples, "images-trained": images}))
        for examples, images in ((3, 15), (100, 25))
    ]
    answers = [message("query", answer=ConfigRecord({"partition-id": 3}))]
    replies = {"query": answers, "train": [*trained, Message(Error(0, "it fails"), reply_to=asked[0])]}
    grid, costs = SimpleNamespace(), Costs()
    costs.count(grid, lambda messages, timeout: replies[messages[0].metadata.message_type])
    assert grid.send_and_receive([message("query")], timeout=1.0) == replies["query"]
    assert (costs.trainings, costs.bytes_to_clients) == (0, 0)
    assert grid.send_and_receive(iter(asked), timeout=1.0) == replies["train"]
    assert (costs.trainings, costs.images, costs.examples) == (2, 40, 103)
    assert (costs.bytes_to_clients, costs.bytes_from_clients) == (
        num_bytes(asked),
        num_bytes(trained + answers),
    )
