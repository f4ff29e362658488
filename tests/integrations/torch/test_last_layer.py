"""The norms of the last layer, against autograd."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

from sortition import ConfigurationError  # noqa: E402
from sortition.integrations.torch import last_layer_norms  # noqa: E402

B, WIDTH, OUTPUTS = 6, 5, 4


def by_autograd(loss: Any, bias: bool, features: Any, targets: Any, outputs: int = OUTPUTS) -> Any:
    """The layer's logits, and the norm of each example's gradient, one backward pass an example."""
    layer = torch.nn.Linear(WIDTH, outputs, bias=bias, dtype=torch.float64)
    norms = []
    for h, target in zip(features, targets, strict=True):
        gradients = torch.autograd.grad(loss(layer(h[None]), target[None]), list(layer.parameters()))
        norms.append(torch.sqrt(sum(g.square().sum() for g in gradients)))
    return layer(features), torch.stack(norms)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(3)


@pytest.mark.parametrize("bias", [True, False])
def test_softmax(bias: bool) -> None:
    features, targets = torch.randn(B, WIDTH, dtype=torch.float64), torch.randint(OUTPUTS, (B,))
    logits, wanted = by_autograd(torch.nn.functional.cross_entropy, bias, features, targets)
    found = last_layer_norms(logits, targets, features, bias=bias)
    assert not found.requires_grad
    torch.testing.assert_close(found, wanted)


def test_softmax_with_soft_labels() -> None:
    features = torch.randn(B, WIDTH, dtype=torch.float64)
    targets = torch.softmax(torch.randn(B, OUTPUTS, dtype=torch.float64), dim=1)
    logits, wanted = by_autograd(torch.nn.functional.cross_entropy, True, features, targets)
    torch.testing.assert_close(last_layer_norms(logits, targets, features), wanted)


@pytest.mark.parametrize("outputs", [1, OUTPUTS])
def test_squared_loss(outputs: int) -> None:
    features = torch.randn(B, WIDTH, dtype=torch.float64)
    targets = torch.randn(B, outputs, dtype=torch.float64)
    logits, wanted = by_autograd(lambda z, y: 0.5 * (z - y).square().sum(), True, features, targets, outputs)
    torch.testing.assert_close(last_layer_norms(logits, targets, features, loss="squared"), wanted)
    if outputs == 1:  # without the dimension of the outputs, too
        flat = last_layer_norms(logits[:, 0], targets[:, 0], features, loss="squared")
        torch.testing.assert_close(flat, wanted)


def test_halves_are_computed_in_single_precision() -> None:
    logits, targets = torch.randn(B, OUTPUTS).half(), torch.randint(OUTPUTS, (B,))
    features = torch.full((B, WIDTH), 6e4).half()  # the norm of a row is above the largest half
    found = last_layer_norms(logits, targets, features)
    torch.testing.assert_close(found, last_layer_norms(logits.float(), targets, features.float()))
    assert bool(found.isfinite().all())


def test_without_features_it_is_the_gradient_of_the_bias() -> None:
    logits, targets = torch.randn(B, OUTPUTS), torch.randint(OUTPUTS, (B,))
    bias = torch.zeros(OUTPUTS, requires_grad=True)
    for k in range(B):
        loss = torch.nn.functional.cross_entropy(logits[k : k + 1] + bias, targets[k : k + 1])
        (gradient,) = torch.autograd.grad(loss, bias)
        torch.testing.assert_close(last_layer_norms(logits, targets)[k], gradient.norm())


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"logits": torch.zeros(B)}, "logits"),
        ({"logits": torch.zeros(B, 2, 2)}, "logits"),
        ({"targets": torch.zeros(B)}, "targets"),
        ({"targets": torch.zeros(B + 1, dtype=torch.long)}, "targets"),
        ({"features": torch.zeros(B)}, "features"),
        ({"features": torch.zeros(B - 1, WIDTH)}, "features"),
        ({"loss": "hinge"}, "loss"),
        ({"loss": "squared"}, "targets"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], argument: str) -> None:
    right = {
        "logits": torch.zeros(B, OUTPUTS),
        "targets": torch.zeros(B, dtype=torch.long),
        "features": torch.zeros(B, WIDTH),
    }
    last_layer_norms(**right)
    with pytest.raises(ConfigurationError, match=rf"^{argument} "):
        last_layer_norms(**{**right, **change})
