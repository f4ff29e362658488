"""Adaptive mini-batches for PyTorch: which examples are in a batch, learnt from the norms of their gradients.

>>> from sortition.integrations.torch import AdaptiveBatchSampler, TicketLoader
>>> data = torch.utils.data.TensorDataset(torch.arange(5.0))
>>> sampler = AdaptiveBatchSampler(len(data), batch_size=2)
>>> for (values,), ticket in TicketLoader(torch.utils.data.DataLoader(data, batch_sampler=sampler)):
...     loss = ticket.mean(values**2)
...     ticket.observe(2.0 * values)
"""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        "sortition.integrations.torch needs PyTorch: pip install 'sortition[torch]' "
        "(in a clone: pip install '.[torch]')"
    ) from error

from sortition.integrations.torch.adaptive_batches import AdaptiveBatchSampler, BatchTicket, TicketLoader
from sortition.integrations.torch.last_layer import last_layer_norms

__all__ = ["AdaptiveBatchSampler", "BatchTicket", "TicketLoader", "last_layer_norms"]
