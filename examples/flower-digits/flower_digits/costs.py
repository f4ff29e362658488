"""What a run costs: trainings on clients, images that were trained on, and bytes to and from the clients."""

from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Message, MessageType
from flwr.serverapp import Grid


@dataclass
class Costs:
    """Counted from the messages that go through a grid, as long as ``count`` has replaced its sending."""

    trainings: int = 0
    images: int = 0  # that local training went through
    examples: int = 0  # that the clients have: what an epoch of each training would go through
    bytes_to_clients: int = 0
    bytes_from_clients: int = 0

    def count(self, grid: Grid, send_and_receive) -> None:
        """Count what ``grid`` sends and receives from now on, by its own ``send_and_receive``."""

        def counting(messages: Iterable[Message], **options) -> list[Message]:
            messages = list(messages)
            replies = list(send_and_receive(messages, **options))
            self.bytes_to_clients += sum(map(num_bytes, messages))
            for reply in replies:
                if reply.has_content():
                    self.bytes_from_clients += num_bytes(reply)
                    if reply.metadata.message_type == MessageType.TRAIN:
                        self.trainings += 1
                        self.images += int(reply.content["metrics"]["images-trained"])
                        self.examples += int(reply.content["metrics"]["num-examples"])
            return replies

        grid.send_and_receive = counting


def num_bytes(message: Message) -> int:
    """The bytes of what a message carries, without those of the protocol."""
    return sum(record.count_bytes() for record in message.content.values())
