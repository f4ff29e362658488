"""The norms of the last layer, against autograd."""

from __future__ import annotations

import re
from typing import Any

import pytest
from numba import njit

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from sortition import ConfigurationError  # noqa: E402
from sortition.integrations.torch import last_layer, last_layer_norms  # noqa: E402
from sortition.lab import warmup  # noqa: E402

SINGLE, DOUBLE = torch.float32, torch.float64
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


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The norms as torch computes them, for other devices and large batches."""

    def norms(*args: Any, **options: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(last_layer, "softmax_norms", None)
            patch.setattr(last_layer, "FEW", -1)
            return last_layer_norms(*args, **options)

    return norms


@pytest.fixture
def by_loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The norms as the loop for small batches computes them; no other way will do."""

    def norms(*args: Any, **options: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(last_layer, "_numbers", None)
            return last_layer_norms(*args, **options)

    return norms


@pytest.mark.parametrize("bias", [True, False])
def test_softmax(bias: bool, by_torch: Any, by_loop: Any) -> None:
    features, targets = torch.randn(B, WIDTH, dtype=torch.float64), torch.randint(OUTPUTS, (B,))
    logits, wanted = by_autograd(torch.nn.functional.cross_entropy, bias, features, targets)
    found = by_loop(logits, targets, features, bias=bias)
    assert not found.requires_grad
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(by_torch(logits, targets, features, bias=bias), wanted)


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("shape", [(B, OUTPUTS, WIDTH), (32, 10, 64), (7, 2, 3), (5, 4, 0), (0, 4, 3)])
def test_the_loop_for_small_batches_equals_torch(dtype: Any, shape: Any, by_torch: Any, by_loop: Any) -> None:
    size, outputs, width = shape
    logits = torch.randn(size, outputs, dtype=dtype, requires_grad=True)
    features = torch.randn(size, width, dtype=dtype, requires_grad=True)
    targets = torch.randint(outputs, (size,))
    found = by_loop(logits, targets, features)
    assert not found.requires_grad
    torch.testing.assert_close(found, by_torch(logits, targets, features), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "change",
    [
        lambda z, y, h: (z.T.contiguous().T, y.repeat_interleave(2)[::2], h[:, :1].expand_as(h)),
        lambda z, y, h: (z.index_fill(0, torch.tensor([1]), float("-inf")), y, h),
        lambda z, y, h: (z.index_fill(1, torch.tensor([1]), float("-inf")), y, h),
        lambda z, y, h: (z.index_fill(1, torch.tensor([1]), float("inf")), y, h),
        lambda z, y, h: (z, y, h.index_fill(1, torch.tensor([1]), float("nan"))),
        lambda z, y, h: (z + 1e4, y, h),
        lambda z, y, h: (1e4 * z, y, h),
    ],
)
def test_unusual_tensors_have_the_norms_of_torch(change: Any, by_torch: Any, by_loop: Any) -> None:
    given = change(torch.randn(B, OUTPUTS), torch.randint(OUTPUTS, (B,)), torch.randn(B, WIDTH))
    torch.testing.assert_close(by_loop(*given), by_torch(*given), equal_nan=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda z, y, h: (z, y.int(), h),
        lambda z, y, h: (z, y.to(torch.uint8), h),
        lambda z, y, h: (z.double(), y, h),
        lambda z, y, h: (z, y, h.bfloat16()),
        lambda z, y, h: (torch.nn.Parameter(z), y, torch.nn.Parameter(h)),
    ],
)
def test_types_that_the_loop_does_not_take_have_its_norms(change: Any, by_loop: Any) -> None:
    plain = torch.randn(B, OUTPUTS), torch.randint(OUTPUTS, (B,)), torch.randn(B, WIDTH).bfloat16().float()
    given = change(*plain)
    with pytest.raises(TypeError):
        by_loop(*given)
    torch.testing.assert_close(last_layer_norms(*given), by_loop(*plain), check_dtype=False)


def test_in_inference_mode() -> None:
    given = torch.randn(B, OUTPUTS), torch.randint(OUTPUTS, (B,)), torch.randn(B, WIDTH)
    wanted = last_layer_norms(*given)
    with torch.inference_mode():
        torch.testing.assert_close(last_layer_norms(given[0] + 0.0, *given[1:]), wanted)


def test_the_default_device_may_be_another_one() -> None:
    given = torch.randn(B, OUTPUTS), torch.randint(OUTPUTS, (B,)), torch.randn(B, WIDTH)
    wanted = last_layer_norms(*given)
    with torch.device("meta"):
        found = last_layer_norms(*given)
    torch.testing.assert_close(found, wanted)


def test_small_residuals_are_exact(by_torch: Any) -> None:
    """One less a probability that is nearly one would have lost them."""
    logits, targets, features = torch.tensor([[20.0, 0.0]]), torch.tensor([0]), torch.ones(1, 3)
    wrong = 1.0 / (1.0 + torch.tensor([20.0], dtype=DOUBLE).exp())
    wanted = (2.0**0.5 * 2.0 * wrong).float()
    torch.testing.assert_close(last_layer_norms(logits, targets, features), wanted, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(by_torch(logits, targets, features), wanted, rtol=1e-6, atol=0.0)


def test_torch_can_compile_it_as_a_whole() -> None:
    given = torch.randn(B, OUTPUTS), torch.randint(OUTPUTS, (B,)), torch.randn(B, WIDTH)
    compiled = torch.compile(last_layer_norms, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*given), last_layer_norms(*given))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's, about scatter_
@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, 0, None), (0, None, None)])
def test_torch_can_map_it_over_batches(in_dims: Any) -> None:
    given = torch.randn(3, B, OUTPUTS), torch.randint(OUTPUTS, (3, B)), torch.randn(3, B, WIDTH)
    given = tuple(x[0] if dim is None else x for x, dim in zip(given, in_dims, strict=True))
    found = torch.func.vmap(last_layer_norms, in_dims=in_dims)(*given)
    for k in range(3):
        own = (x if dim is None else x[k] for x, dim in zip(given, in_dims, strict=True))
        torch.testing.assert_close(found[k], last_layer_norms(*own))


def test_a_loss_that_torch_differentiates_may_call_it() -> None:
    features, targets = torch.randn(B, WIDTH), torch.randint(OUTPUTS, (B,))
    weights, norms = torch.randn(WIDTH, OUTPUTS), []

    def loss(weights: Any) -> Any:
        logits = features @ weights
        found = last_layer_norms(logits, targets, features)
        norms.append(found.sum().item())
        return (found * logits.sum(dim=1)).sum()  # the norms are constants

    wanted = last_layer_norms(features @ weights, targets, features)
    gradient = torch.func.grad(loss)(weights)
    assert norms == pytest.approx([wanted.sum().item()])
    torch.testing.assert_close(gradient, (wanted @ features)[:, None].expand(WIDTH, OUTPUTS))


@pytest.mark.parametrize("traced", [(0, 1, 2), (0,), (1,), (2,)])
@pytest.mark.parametrize("tool", [torch.jit.trace, lambda f, given: make_fx(f)(*given)])
@pytest.mark.filterwarnings("ignore")  # jit's, about the checks of shapes and about itself
def test_a_trace_computes_the_norms_of_what_it_is_given(tool: Any, traced: tuple[int, ...]) -> None:
    given = [torch.randn(B, OUTPUTS), torch.randint(OUTPUTS, (B,)), torch.randn(B, WIDTH)]

    def norms(*some: Any) -> Any:
        every = list(given)
        for k, x in zip(traced, some, strict=True):
            every[k] = x
        return last_layer_norms(*every)

    trace = tool(norms, tuple(given[k] for k in traced))
    others = torch.randn(B, OUTPUTS), (given[1] + 1) % OUTPUTS, torch.randn(B, WIDTH)
    some = [others[k] for k in traced]
    torch.testing.assert_close(trace(*some), norms(*some))


@pytest.mark.parametrize("wrong", [-1, -100, OUTPUTS])
@pytest.mark.parametrize(
    "change",
    [
        lambda z, y, h: (z, y, h),
        lambda z, y, h: (z, y),
        lambda z, y, h: (z, y.int(), h),
        lambda z, y, h: (z.bfloat16(), y, h),
        lambda z, y, h: (z.repeat(last_layer.FEW, 1), y.repeat(last_layer.FEW), h.repeat(last_layer.FEW, 1)),
    ],
)
def test_a_target_that_is_no_class_is_named(change: Any, wrong: int) -> None:
    given = torch.zeros(4, OUTPUTS), torch.tensor([0, 1, wrong, wrong]), torch.zeros(4, WIDTH)
    with pytest.raises(
        ConfigurationError, match=rf"^targets must be classes from 0 to 3, got {wrong} in row 2; for"
    ):
        last_layer_norms(*change(*given))


def test_softmax_with_soft_labels() -> None:
    features = torch.randn(B, WIDTH, dtype=torch.float64)
    targets = torch.softmax(torch.randn(B, OUTPUTS, dtype=torch.float64), dim=1)
    logits, wanted = by_autograd(torch.nn.functional.cross_entropy, True, features, targets)
    torch.testing.assert_close(last_layer_norms(logits, targets, features), wanted)


def test_soft_labels_in_halves_sum_to_one_as_well_as_they_can() -> None:
    targets = torch.softmax(torch.randn(B, 1000), dim=1)
    for halves in (targets.half(), targets.bfloat16()):
        last_layer_norms(torch.zeros(B, 1000), halves)


@pytest.mark.parametrize("outputs", [1, OUTPUTS])
def test_sigmoids(outputs: int) -> None:
    features = torch.randn(B, WIDTH, dtype=torch.float64)
    targets = torch.randint(2, (B, outputs)).double()

    def loss(z: Any, y: Any) -> Any:
        return torch.nn.functional.binary_cross_entropy_with_logits(z, y, reduction="sum")

    logits, wanted = by_autograd(loss, True, features, targets, outputs)
    for labels in (targets, targets.bool(), targets.long()):
        torch.testing.assert_close(last_layer_norms(logits, labels, features, loss="sigmoid"), wanted)
    if outputs == 1:  # without the dimension of the outputs, too
        flat = last_layer_norms(logits[:, 0], targets[:, 0], features, loss="sigmoid")
        torch.testing.assert_close(flat, wanted)


def test_class_weights_and_smoothed_labels() -> None:
    features, targets = torch.randn(B, WIDTH, dtype=torch.float64), torch.randint(OUTPUTS, (B,))
    weight, smoothing = torch.rand(OUTPUTS, dtype=torch.float64), 0.2

    def loss(z: Any, y: Any) -> Any:
        return torch.nn.functional.cross_entropy(z, y, weight, reduction="none")[0]

    logits, wanted = by_autograd(loss, True, features, targets)
    torch.testing.assert_close(last_layer_norms(logits, targets, features) * weight[targets], wanted)

    def smooth(z: Any, y: Any) -> Any:
        return torch.nn.functional.cross_entropy(z, y, label_smoothing=smoothing)

    logits, wanted = by_autograd(smooth, True, features, targets)
    labels = torch.nn.functional.one_hot(targets, OUTPUTS).double() * (1.0 - smoothing) + smoothing / OUTPUTS
    torch.testing.assert_close(last_layer_norms(logits, labels, features), wanted)


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
        ({"logits": torch.zeros(B, 0)}, 'logits must have two outputs at least; one is for loss="sigmoid"'),
        ({"logits": torch.zeros(B, 1)}, 'logits must have two outputs at least; one is for loss="sigmoid"'),
        ({"targets": torch.zeros(B)}, "targets"),
        ({"targets": torch.zeros(B + 1, dtype=torch.long)}, "targets"),
        ({"features": torch.zeros(B)}, "features"),
        ({"features": torch.zeros(B - 1, WIDTH)}, "features"),
        ({"loss": "hinge"}, "loss"),
        ({"loss": "squared"}, "targets"),
        ({"logits": [[0.0] * OUTPUTS] * B}, "logits must be a tensor, got list"),
        ({"targets": [0] * B}, "targets must be a tensor, got list"),
        ({"features": 1.0}, "features must be a tensor, got float"),
        ({"targets": torch.eye(B, OUTPUTS)}, "targets must sum to one in each row, got 0 in row 4; labels"),
        ({"targets": torch.full((B, OUTPUTS), 0.5).bfloat16()}, "targets must sum to one in each row, got 2"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], argument: str) -> None:
    right = {
        "logits": torch.zeros(B, OUTPUTS),
        "targets": torch.zeros(B, dtype=torch.long),
        "features": torch.zeros(B, WIDTH),
    }
    last_layer_norms(**right)
    with pytest.raises(ConfigurationError, match=f"^{re.escape(argument)}"):
        last_layer_norms(**{**right, **change})


def test_warmup_compiles_what_a_step_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = njit(last_layer.softmax_norms.py_func)
    monkeypatch.setattr(last_layer, "softmax_norms", fresh)
    warmup._measure_norms()
    compiled = list(fresh.signatures)
    for dtype in (SINGLE, DOUBLE):
        last_layer_norms(
            torch.randn(B, OUTPUTS, dtype=dtype, requires_grad=True),
            torch.randint(OUTPUTS, (B,)),
            torch.randn(B, WIDTH, dtype=dtype),
        )
    assert fresh.signatures == compiled
    assert len(compiled) == 2


@pytest.mark.parametrize("size", [5.0, 14.0, 18.0, 40.0])
def test_confident_logits_lose_no_digits(size: float, by_torch: Any) -> None:
    """In float32 the probability of the target is 1 from 17 on; what is left of it is known all the same."""
    z = torch.tensor([[size, 0.0], [-size, 0.5], [size, -size]])
    y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]])
    p = torch.softmax(z.double(), 1)
    others = p.flip(1)  # one less p, without a difference
    exact = y.double()
    wanted = torch.linalg.vector_norm((1.0 - exact) * p - exact * others, dim=1)
    torch.testing.assert_close(last_layer_norms(z, y), wanted.float(), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(by_torch(z[:2], torch.tensor([0, 1])), wanted[:2].float(), rtol=1e-5, atol=0.0)
    single, labels = torch.tensor([size, -size, size]), torch.tensor([1.0, 0.0, 0.25])
    found = last_layer_norms(single, labels, loss="sigmoid")
    rest = torch.sigmoid(-single[:1].double()).item()
    assert found[:2].tolist() == pytest.approx([rest, rest], rel=1e-5, abs=0.0)
    assert found[2].item() == pytest.approx(0.75, abs=0.01)


def test_an_ignored_target_is_told_what_to_give() -> None:
    with pytest.raises(ConfigurationError, match=r"got -100 in row 0; .*give any class, and 0 to observe"):
        last_layer_norms(torch.zeros(1, 3), torch.tensor([-100]), torch.zeros(1, 2))
