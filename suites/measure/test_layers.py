"""Layers that do something of their own with weights, buffers, kernels or random numbers: healthy, so nothing is found."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

import precheck

PRECISIONS = ("bf16-mixed", "bf16-true", "16-mixed", "32-true")


class Calls(nn.Module):
    """A module around a function of its layer and an input."""

    def __init__(self, layer: nn.Module, call: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x: torch.Tensor) -> Any:
        return self.call(self.layer, x)


class Scaled(nn.Module):
    """Scalar parameters, parameters in lists and dicts, and a buffer that forward writes."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.rows = nn.ParameterList([nn.Parameter(torch.randn(16, 16) / 4) for _ in range(2)])
        self.named = nn.ParameterDict({"shift": nn.Parameter(torch.zeros(16))})
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for row in self.rows:
            x = torch.tanh(x @ row)
        with torch.no_grad():
            self.mean = self.mean.lerp(x.mean(0).to(self.mean.dtype), 0.1)
            self.steps += 1
        return x * self.gain + self.named["shift"]


def attend(layer: nn.MultiheadAttention, x: torch.Tensor) -> torch.Tensor:
    return layer(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]


def twice_normed() -> nn.Module:
    return nn.Sequential(weight_norm(nn.Linear(16, 16)), spectral_norm(nn.Linear(16, 16)))


def convnet(norm: Callable[[int], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), norm(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def ids() -> torch.Tensor:
    return torch.arange(32).view(4, 8) % 10


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (8, 16), generator=torch.Generator().manual_seed(1))


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "batch norm": (lambda: nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 16)), x),
    "convolutions, batch norm, max-pool": (lambda: convnet(nn.BatchNorm2d), lambda: x(4, 1, 12, 12)),
    "convolutions, group norm": (lambda: convnet(lambda c: nn.GroupNorm(2, c)), lambda: x(4, 1, 12, 12)),
    "transposed convolution": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), lambda: x(2, 4, 9)),
    "dropout": (lambda: nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 16)), x),
    "alpha and feature dropout": (lambda: nn.Sequential(nn.Linear(16, 16), nn.AlphaDropout(0.2), nn.Dropout1d(0.2)), lambda: x(2, 8, 16)),
    "random relu": (lambda: nn.Sequential(nn.Linear(16, 16), nn.RReLU(), nn.Linear(16, 16)), x),
    "attention": (lambda: Calls(nn.MultiheadAttention(16, 4, batch_first=True), attend), lambda: x(2, 6, 16)),
    "attention's fast path": (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval(), lambda: x(2, 6, 16)),
    "encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1), 2, enable_nested_tensor=False), lambda: x(6, 2, 16)),
    "decoder": (lambda: Calls(nn.TransformerDecoderLayer(16, 4, 32), lambda layer, x: layer(x, x)), lambda: x(6, 2, 16)),
    "lstm": (lambda: Calls(nn.LSTM(16, 8, 2, batch_first=True), lambda layer, x: layer(x)[0]), lambda: x(3, 5, 16)),
    "two-way lstm": (lambda: Calls(nn.LSTM(16, 8, bidirectional=True), lambda layer, x: layer(x)[1][0]), lambda: x(5, 3, 16)),
    "gru": (lambda: Calls(nn.GRU(16, 8, 2), lambda layer, x: layer(x)[0]), lambda: x(5, 3, 16)),
    "rnn": (lambda: Calls(nn.RNN(16, 8), lambda layer, x: layer(x)[0]), lambda: x(5, 3, 16)),
    "lstm cell": (lambda: Calls(nn.LSTMCell(16, 16), lambda layer, x: layer(x, layer(x))[0]), x),
    "embedding": (lambda: nn.Sequential(nn.Embedding(10, 16, padding_idx=0), nn.Linear(16, 16)), ids),
    "sparse embedding": (lambda: nn.Sequential(nn.Embedding(10, 16, sparse=True), nn.Linear(16, 16)), ids),
    "embedding bag": (lambda: nn.Sequential(nn.EmbeddingBag(10, 16, mode="mean"), nn.Linear(16, 16)), ids),
    "weight and spectral norm": (twice_normed, x),
    "parametrized": (lambda: parametrizations.weight_norm(nn.Linear(16, 16)), x),
    "scalars, lists, dicts, buffers": (Scaled, x),
    "module lists and dicts": (
        lambda: Calls(nn.ModuleDict({"a": nn.ModuleList([nn.Linear(16, 16), nn.Tanh()])}), lambda layer, x: layer["a"][1](layer["a"][0](x))), x),
    "interpolation": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Upsample(scale_factor=2, mode="bilinear")), lambda: x(2, 1, 8, 8)),
    "bilinear": (lambda: Calls(nn.Bilinear(16, 16, 8), lambda layer, x: layer(x, x)), x),
    "glu, prelu, softmax": (lambda: nn.Sequential(nn.Linear(16, 32), nn.GLU(), nn.PReLU(), nn.Softmax(-1), nn.RMSNorm(16, eps=1e-6)), x),
    "hard activations": (lambda: nn.Sequential(nn.Linear(16, 16), nn.Hardtanh(), nn.Hardswish(), nn.ReLU6(), nn.Softshrink(0.01)), x),
    "sort and top-k": (lambda: Calls(nn.Linear(16, 16), lambda layer, x: layer(x).sort(-1)[0] + layer(x).topk(16)[0].flip(-1)), x),
    "a mask of -inf": (lambda: Calls(nn.Linear(16, 16), lambda layer, x: layer(x).masked_fill(x > 1, float("-inf")).softmax(-1)), x),
    "cumulative sums": (lambda: Calls(nn.Linear(16, 16), lambda layer, x: layer(x).cumsum(-1) / 16), x),
    "noise of its own": (lambda: Calls(nn.Linear(16, 16), lambda layer, x: layer(x) + torch.randn_like(x) * torch.rand(16)), x),
}  # fmt: skip

NO_KERNEL = {("random relu", "16-mixed")}  # torch has none for float16 on a CPU


def cases() -> list[tuple[str, str]]:
    return [case for layer in LAYERS for case in [(layer, precision) for precision in PRECISIONS] if case not in NO_KERNEL]


def squares(out: Any) -> torch.Tensor:
    return out.float().square().mean()  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize(("layer", "precision"), cases())
def test_a_healthy_layer_is_left_alone(layer: str, precision: str) -> None:
    build, inputs = LAYERS[layer]
    torch.manual_seed(0)
    # bfloat16 weights would lose the small updates of some of these, which is another matter
    optimizer = (lambda params: torch.optim.SGD(params, lr=0.5)) if precision != "bf16-true" else None
    report = precheck.measure(build(), inputs(), precision=precision, loss=squares, optimizer=optimizer, steps=2 if optimizer else 1)
    assert not [finding for finding in report.findings if finding.severity != "note"], report.summary()
    assert [row for row in report.boundaries if row.kind == "output"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_attentions_fast_path_without_gradients(precision: str) -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2, enable_nested_tensor=False).eval()
    with torch.no_grad():
        report = precheck.measure(model, x(2, 6, 16), precision=precision)
    assert report.errors == [], report.summary()


class Random(nn.Module):
    """Takes its numbers from `draw`."""

    def __init__(self, draw: Callable[[nn.Module], float]) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.generator = torch.Generator().manual_seed(1)
        self.count = 0
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.layer(x) * (1 + self.draw(self))


SOURCES: dict[str, Callable[[Any], float]] = {
    "torch": lambda model: float(torch.rand(())),
    "python": lambda model: random.random(),
    "numpy": lambda model: float(numpy.random.rand()),
    "a generator": lambda model: float(torch.rand((), generator=model.generator)),
    "a counter": lambda model: float(model.count),
}
@pytest.mark.parametrize("source", SOURCES)
def test_a_forward_repeated_for_a_smaller_loss_scale_repeats_itself(source: str) -> None:
    torch.manual_seed(0)
    report = precheck.measure(Random(SOURCES[source]), x(), precision="16-mixed", loss=lambda out: squares(out) * 1e3)
    assert report.scaler["skipped"] > 0
    assert report.errors == [], report.summary()


def test_running_statistics_are_the_reference_runs_own() -> None:
    """Each run starts from the buffers that the user has, whatever an earlier run made of its own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))
    model(x())
    first, second = (precheck.measure(model, x(), loss=squares).to_json() for _ in range(2))
    assert first == second
    assert model[1].num_batches_tracked == 1


def test_a_compiled_model_is_measured_as_it_is() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(16, 16), nn.GELU())
    compiled = torch.compile(plain, backend="eager")
    report = precheck.measure(compiled, x(), loss=squares)
    assert report.errors == [], report.summary()
    assert [row.tensor for row in report.boundaries if row.kind == "output"] == ["_orig_mod.0", "_orig_mod.1"]
    assert F.gelu(plain[0](x())).equal(compiled(x()))  # and compiles afterwards, as it would have
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0


class Calibrated(nn.Module):
    """Interpolates between keypoints, as lattice models do: its weights are float64, and so are numbers that it keeps beside them."""

    def __init__(self, *, low: bool) -> None:
        super().__init__()
        self.low, self.keypoints = low, torch.linspace(0, 300, 7, dtype=torch.float64)
        self.weight = nn.Parameter(torch.randn(7, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(300).to(torch.bfloat16 if self.low else torch.float64).double()[:, None] + x
        return ((places - self.keypoints) / 50).clamp(0, 1) @ self.weight


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("low", [False, True])
def test_float64_weights_stay_beside_float64_numbers(precision: str, low: bool) -> None:
    x = torch.rand(300, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    report = precheck.measure(Calibrated(low=low), x, precision=precision, loss=lambda out: out.square().mean())
    assert bool(report.errors) is low, report.summary()
    assert not low or "integer-rounding" in (report.errors[0].rule, report.errors[0].cause_rule)
