"""A grid with fewer nodes: what the inner strategy sees of the federation."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run


class OfferedGrid(Grid):
    """The same grid, of which only the nodes on offer can be seen."""

    def __init__(self, grid: Grid, nodes: Iterable[int]) -> None:
        self._grid = grid
        self._nodes = tuple(nodes)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes on offer."""
        return list(self._nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """What is known of the nodes on offer."""
        offered = set(self._nodes)
        return [node for node in self._grid.get_nodes() if node.node_id in offered]

    def set_run(self, run: Run) -> None:
        """As on the grid itself."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """As on the grid itself."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """As on the grid itself."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As on the grid itself."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As on the grid itself."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """As on the grid itself."""
        return self._grid.send_and_receive(messages, timeout=timeout)
