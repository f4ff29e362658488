"""Flower's grid with clients that run in this process: a page is built without Ray and without a network."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class LocalGrid(Grid):
    """The ClientApp answers each message, one after the other."""

    def __init__(self, app: ClientApp, num_supernodes: int) -> None:
        self._app = app
        self._contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": node - 1},
                state=RecordDict(),
                run_config={},
            )
            for node in range(1, num_supernodes + 1)
        }

    def get_node_ids(self) -> Iterable[int]:
        return self._contexts

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node) for node in self._contexts]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [self._answer(message) for message in messages]

    def _answer(self, message: Message) -> Message:
        message.metadata.__dict__["_message_id"] = str(uuid4())
        return self._app(message, self._contexts[message.metadata.dst_node_id])

    def set_run(self, *arguments: Any) -> None:
        raise NotImplementedError

    run = property(set_run)
    create_message = push_messages = pull_messages = set_run


def simulate(server_main: Any, client_app: ClientApp, num_supernodes: int) -> None:
    """What ``run_simulation`` does, in this process and without its log."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    server_main(LocalGrid(client_app, num_supernodes), None)
