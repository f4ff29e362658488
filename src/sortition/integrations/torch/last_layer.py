"""Norms of gradients that cost next to nothing: those of the last layer."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sortition.core.errors import ConfigurationError
from sortition.core.validation import one_of


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
    one_of("loss", loss, ("softmax", "squared"))
    size = logits.shape[:1]
    if logits.ndim not in (1, 2) or (loss == "softmax" and logits.ndim == 1):
        raise ConfigurationError(f"logits must have shape (batch, outputs), got {tuple(logits.shape)}")
    classes = loss == "softmax" and targets.shape == size and not targets.is_floating_point()
    if not classes and targets.shape != logits.shape:
        either = f"classes of shape {tuple(size)} or probabilities" if loss == "softmax" else "numbers"
        raise ConfigurationError(
            f"targets must be {either} of shape {tuple(logits.shape)}, "
            f"got {targets.dtype} of shape {tuple(targets.shape)}"
        )
    if features is not None and (features.ndim != 2 or features.shape[:1] != size):
        raise ConfigurationError(
            f"features must have shape ({size[0]}, width), the input of the last layer, "
            f"got {tuple(features.shape)}"
        )
    dtype = torch.promote_types(logits.dtype, torch.float32)
    with torch.no_grad():
        outputs = torch.softmax(logits, dim=1, dtype=dtype) if loss == "softmax" else logits.to(dtype)
        if classes:
            residuals = outputs.scatter_(1, targets.long().unsqueeze(1), -1.0, reduce="add")
        else:
            residuals = outputs - targets
        norms = residuals.abs() if logits.ndim == 1 else torch.linalg.vector_norm(residuals, dim=1)
        if features is None:
            return norms
        dtype = torch.promote_types(features.dtype, torch.float32)
        products = norms * torch.linalg.vector_norm(features, dim=1, dtype=dtype)
        return torch.hypot(products, norms) if bias else products
