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
    with torch.no_grad():
        z = _at_least_single(logits)
        size = z.shape[:1]
        if z.ndim not in (1, 2) or not len(size):
            raise ConfigurationError(f"logits must have shape (batch, outputs), got {tuple(z.shape)}")
        if loss == "softmax":
            if z.ndim != 2:
                raise ConfigurationError(f"logits must have shape (batch, classes), got {tuple(z.shape)}")
            residual = torch.softmax(z, dim=1)
            if targets.shape == size and not targets.is_floating_point():
                minus_one = residual.new_full((1, 1), -1.0).expand(len(z), 1)
                residual.scatter_add_(1, targets.long().unsqueeze(1), minus_one)
            elif targets.shape == z.shape:
                residual = residual - targets
            else:
                raise ConfigurationError(
                    f"targets must be classes of shape {tuple(size)} or probabilities of shape "
                    f"{tuple(z.shape)}, got {targets.dtype} of shape {tuple(targets.shape)}"
                )
        else:
            if targets.shape != z.shape:
                raise ConfigurationError(
                    f"targets must have the shape of logits, {tuple(z.shape)}, got {tuple(targets.shape)}"
                )
            residual = z - targets
        norms = residual.abs() if z.ndim == 1 else torch.linalg.vector_norm(residual, dim=1)
        if features is None:
            return norms
        h = _at_least_single(features)
        if h.ndim != 2 or h.shape[:1] != size:
            raise ConfigurationError(
                f"features must have shape ({size[0]}, width), the input of the last layer, "
                f"got {tuple(h.shape)}"
            )
        lengths = torch.linalg.vector_norm(h, dim=1)
        return norms * (torch.hypot(lengths, torch.ones_like(lengths)) if bias else lengths)


def _at_least_single(values: Tensor) -> Tensor:
    values = values.detach()
    return values.to(torch.promote_types(values.dtype, torch.float32))
