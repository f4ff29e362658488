"""Norms of gradients that cost next to nothing: those of the last layer."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sortition.core.errors import ConfigurationError
from sortition.core.validation import one_of

LOSSES = ("softmax", "squared")
PRECISE = (torch.float32, torch.float64)


def last_layer_norms(
    logits: Tensor,
    targets: Tensor,
    features: Tensor | None = None,
    *,
    loss: Literal["softmax", "squared"] = "softmax",
    bias: bool = True,
) -> Tensor:
    r"""The exact norm of each example's gradient in the last layer, :math:`z = W h + b`.

    With the residual :math:`r = \varsigma(z) - e_y` of the cross-entropy or :math:`r = z - y` of half the
    squared error :math:`\frac12 \|z - y\|^2`, the gradients are :math:`r h^\top` and r, so the norm is

    .. math:: \|r\| \sqrt{\|h\|^2 + 1}

    ``logits`` are z, of shape (b, classes), or (b,) for one output; ``targets`` the classes (b,) or, for
    soft labels and the squared loss, of the shape of z. ``features`` are h, of shape (b, width). Without
    them, :math:`\|r\|` is returned: the norm of the bias' gradient. ``bias=False`` is for a layer without
    one. Of ``torch.nn.MSELoss``, which has no one half and divides by the outputs, the norms are
    proportional to these, which is as good for sampling. Halves are computed in float32. Nothing here is part
    of the graph.

    >>> z, h = torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])
    >>> last_layer_norms(z, torch.tensor([1]), h, bias=False)  # r = (1/2, -1/2), and h has norm 5
    tensor([3.5355])
    """
    softmax = loss == "softmax"
    if not softmax:
        one_of("loss", loss, LOSSES)
    shape, rows = logits.shape, targets.shape
    classes = softmax and len(rows) == 1 and not targets.dtype.is_floating_point
    if len(shape) != 2 and (softmax or len(shape) != 1):
        raise ConfigurationError(f"logits must have shape (batch, outputs), got {tuple(shape)}")
    if rows[0] != shape[0] if classes else rows != shape:
        either = f"classes of shape ({shape[0]},) or probabilities" if softmax else "numbers"
        raise ConfigurationError(
            f"targets must be {either} of shape {tuple(shape)}, got {targets.dtype} of shape {tuple(rows)}"
        )
    if features is not None and (features.ndim != 2 or features.shape[0] != shape[0]):
        raise ConfigurationError(
            f"features must have shape ({shape[0]}, width), the input of the last layer, "
            f"got {tuple(features.shape)}"
        )
    outputs = _numbers(logits)
    if softmax:
        outputs = torch.softmax(outputs, 1)
    if classes:
        index = targets if targets.dtype == torch.int64 else targets.long()
        residuals = outputs.scatter_(1, index.unsqueeze(1), -1.0, reduce="add")
    else:
        residuals = outputs - targets.detach()
    norms = residuals.abs() if len(shape) == 1 else torch.linalg.vector_norm(residuals, dim=1)
    if features is None:
        return norms
    products = norms * torch.linalg.vector_norm(_numbers(features), dim=1)
    return torch.hypot(products, norms) if bias else products


def _numbers(values: Tensor) -> Tensor:
    """Without the graph, in float32 at least."""
    values = values.detach()  # cheaper than torch.no_grad
    return values if values.dtype in PRECISE else values.float()
