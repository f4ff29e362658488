"""Norms of gradients that cost next to nothing: those of the last layer."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import has_torch_function

from sortition.core.errors import ConfigurationError
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import one_of

LOSSES = ("softmax", "sigmoid", "squared")
PRECISE = (torch.float32, torch.float64)
LABEL_TOLERANCE = 0.01
"""Soft labels sum to one but for this; as halves they may be off by as much."""
FEW = 2048
"""Up to so many logits a call of torch takes longer than its work, and one loop is faster than nine calls."""


def last_layer_norms(
    logits: Tensor,
    targets: Tensor,
    features: Tensor | None = None,
    *,
    loss: Literal["softmax", "sigmoid", "squared"] = "softmax",
    bias: bool = True,
) -> Tensor:
    r"""The exact norm of each example's gradient in the last layer, :math:`z = W h + b`.

    The gradients are :math:`r h^\top` and r, with the residual :math:`r = \varsigma(z) - e_y` of the
    cross-entropy, :math:`r = z - y` of half the squared error :math:`\frac12 \|z - y\|^2`, or the sigmoids
    of z less y of a binary cross-entropy that is summed over the outputs. So the norm is

    .. math:: \|r\| \sqrt{\|h\|^2 + 1}

    ``logits`` are z, of shape (b, classes); with another loss than the softmax (b, outputs), or (b,) for one.
    ``targets`` are the classes (b,) or, for soft labels and the other losses, of the shape of z. ``features``
    are h, of shape (b, width). Without them, :math:`\|r\|` is returned: the norm of the bias' gradient.
    ``bias=False`` is for a layer without one. If the loss is a mean over the outputs, or has no one half as
    ``torch.nn.MSELoss``, the norms are proportional to these, which is as good for sampling. With class
    weights, multiply the norms by those of the targets; with label smoothing, give the smoothed labels; for a
    target that the loss ignores, give any class, and 0 to ``observe``: its gradient is known to be 0. Of a
    sequence with a loss for each token, the norm is about the root of the sum of the squared norms of its
    tokens, over their number; its mean loss goes to ``ticket.mean``.
    Halves are computed in float32. Nothing here is part of the graph.

    A target that is no class, and soft labels that do not sum to one, raise a ConfigurationError on the cpu.
    On other devices they are not looked for, as the step would have to wait for them, nor while torch
    compiles, traces or transforms this function.

    >>> z, h = torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])
    >>> last_layer_norms(z, torch.tensor([1]), h, bias=False)  # r = (1/2, -1/2), and h has norm 5
    tensor([3.5355])
    """
    softmax = loss == "softmax"
    if not softmax:
        one_of("loss", loss, LOSSES)
    given: dict[str, object] = {"logits": logits, "targets": targets, "features": features}
    for name, values in given.items():
        if not isinstance(values, Tensor) and (values is not None or name != "features"):
            raise ConfigurationError(f"{name} must be a tensor, got {type(values).__name__}")
    shape, rows = logits.shape, targets.shape
    classes = softmax and len(rows) == 1 and not targets.dtype.is_floating_point
    if len(shape) != 2 and (softmax or len(shape) != 1):
        raise ConfigurationError(f"logits must have shape (batch, outputs), got {tuple(shape)}")
    if len(shape) == 2 and shape[1] < (2 if softmax else 1):
        least = 'two outputs at least; one is for loss="sigmoid"'
        raise ConfigurationError(
            f"logits must have {least if softmax else 'one output at least'}, got shape {tuple(shape)}"
        )
    if rows[0] != shape[0] if classes else rows != shape:
        either = f"whole numbers of shape ({shape[0]},) or probabilities" if softmax else "numbers"
        raise ConfigurationError(
            f"targets must be {either} of shape {tuple(shape)}, as the logits have it, "
            f"got {targets.dtype} of shape {tuple(rows)}"
        )
    if features is not None and (features.ndim != 2 or features.shape[0] != shape[0]):
        raise ConfigurationError(
            f"features must have shape ({shape[0]}, width), the input of the last layer, "
            f"got {tuple(features.shape)}"
        )
    if classes and features is not None and _few(logits, targets, features):
        arrays = _on_cpu(logits, targets, features)
        if arrays is not None:
            z, y, h = arrays
            found = np.empty(len(z), z.dtype)
            wrong = softmax_norms(z, y, h, found, bias)
            if wrong >= 0:
                raise _no_class(logits, targets, wrong)
            return torch.from_numpy(found)
    if classes:
        arrays = _on_cpu(targets)
        if arrays is not None:
            outside = (arrays[0] < 0) | (arrays[0] >= logits.shape[1])
            if outside.any():
                raise _no_class(logits, targets, int(outside.argmax()))
    elif softmax:
        arrays = _on_cpu(_numbers(targets))
        if arrays is not None:
            sums = arrays[0].sum(1)
            other = np.abs(sums - 1.0) > LABEL_TOLERANCE
            if other.any():
                raise ConfigurationError(
                    f"targets must sum to one in each row, got {sums[other.argmax()]:.6g} in row "
                    f'{other.argmax()}; labels that do not exclude each other are for loss="sigmoid"'
                )
    outputs = _numbers(logits)
    if softmax:
        outputs = torch.softmax(outputs, 1)
    if classes:  # one less its probability is the sum of the others, which loses no digits
        index = targets if targets.dtype == torch.int64 else targets.long()
        others = outputs.scatter_(1, index.unsqueeze(1), 0.0)
        norms = torch.hypot(torch.linalg.vector_norm(others, dim=1), others.sum(1))
    else:
        exact = torch.promote_types(outputs.dtype, targets.dtype)  # torch subtracts no booleans
        residuals = _residuals(outputs, targets.detach().to(exact), loss)
        norms = residuals.abs() if len(shape) == 1 else torch.linalg.vector_norm(residuals, dim=1)
    if features is None:
        return norms
    products = norms * torch.linalg.vector_norm(_numbers(features), dim=1)
    return torch.hypot(products, norms) if bias else products


def _residuals(outputs: Tensor, labels: Tensor, loss: str) -> Tensor:
    """p - y as (1 - y) p - y (1 - p), where 1 - p is computed so that it loses no digits near 0."""
    if loss == "squared":
        return outputs - labels
    if loss == "sigmoid":
        return (1.0 - labels) * torch.sigmoid(outputs) - labels * torch.sigmoid(-outputs)
    top = outputs.argmax(1, keepdim=True)
    others = outputs.scatter(1, top, 0.0).sum(1, keepdim=True)
    return (1.0 - labels) * outputs - labels * (1.0 - outputs).scatter(1, top, others)


def _numbers(values: Tensor) -> Tensor:
    """Without the graph, in float32 at least."""
    values = values.detach()  # cheaper than torch.no_grad
    return values if values.dtype in PRECISE else values.float()


def _few(logits: Tensor, targets: Tensor, features: Tensor) -> bool:
    """Whether ``softmax_norms`` is the faster way, and has the types for it."""
    return (
        logits.numel() <= FEW
        and logits.dtype in PRECISE
        and features.dtype == logits.dtype
        and targets.dtype == torch.int64
    )


def _on_cpu(*tensors: Tensor) -> list[NDArray[Any]] | None:
    """The tensors' own memory, without the graph; None if one is elsewhere, or torch looks on or compiles."""
    if torch.compiler.is_compiling() or has_torch_function(tensors):
        return None
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return None
    for tensor in tensors:
        if type(tensor) is not Tensor or not tensor.is_cpu:
            return None
    try:
        return [tensor.numpy(force=True) for tensor in tensors]
    except RuntimeError:  # in a transform of torch.func they have no memory
        return None


def _no_class(logits: Tensor, targets: Tensor, row: int) -> ConfigurationError:
    return ConfigurationError(
        f"targets must be classes from 0 to {logits.shape[1] - 1}, got {targets[row]} in row {row}; for a "
        "target that the loss ignores give any class, and 0 to observe"
    )


@njit(cache=True, fastmath={"reassoc", "contract"})
def softmax_norms(
    logits: FloatArray, targets: IntArray, features: FloatArray, norms: FloatArray, bias: bool
) -> int:
    r"""Write the norms of ``last_layer_norms`` for classes; the first row whose target is no class, or -1.

    With :math:`e_k = \exp(z_k - \max z)` it is

    .. math:: \|r\|^2 = \frac{\sum_{k \ne y} e_k^2 + (\sum_{k \ne y} e_k)^2}{(\sum_k e_k)^2}
    """
    for i in range(len(logits)):
        if not 0 <= targets[i] < logits.shape[1]:
            return i
        top = logits[i, 0]
        for k in range(1, logits.shape[1]):
            top = max(top, logits[i, k])
        own = others = squares = 0.0
        for k in range(logits.shape[1]):
            e = np.float64(np.exp(logits[i, k] - top))
            if k == targets[i]:
                own = e
            else:
                others += e
                squares += e * e
        length = 1.0 if bias else 0.0
        for j in range(features.shape[1]):
            length += np.float64(features[i, j]) ** 2
        norms[i] = np.sqrt((squares + others * others) * length) / (own + others)
    return -1
