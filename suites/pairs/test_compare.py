"""`precheck.compare`: pairs that are equal on paper pass in every precision, and what is broken is caught, named and placed."""

from __future__ import annotations

import math
import random
import re
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from decoder import decoder, language_loss, tokens
from equals import PAIRS
from torch import nn

import precheck

ADAM = {"optimizer": lambda held: torch.optim.AdamW(held, lr=1e-3)}


def compared(model: Any, other: Any, inputs: Any, **given: Any) -> precheck.Report:
    return precheck.compare(model, other, inputs, **given)


LOW = ["bf16-mixed", "bf16-true", "16-mixed"]


@pytest.mark.parametrize(("name", "precision"), [(name, each) for place, name in enumerate(PAIRS) for each in ("32-true", LOW[place % len(LOW)])])
def test_what_is_equal_on_paper_passes(name: str, precision: str) -> None:
    torch.manual_seed(0)
    model, other, inputs, given = PAIRS[name]()
    report = compared(model, other, inputs, precision=precision, **given)
    assert not report.errors, report.summary()
    assert report.verdict in ("bitwise", "rounding")
    assert {finding.rule for finding in report.findings} <= {"bitwise", "rounding", "less-accurate"}


BROKEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "mask off by one": ({"broken": {"attention": "written", "shift": 1}}, "layers.1.attention", r"mask is not .* element i is element i-1"),
    "no scale": ({"broken": {"attention": "written", "scale": 1.0}}, "layers.1.attention", r"softmax reads 2\.82843 times what model's softmax"),
    "bias dropped": ({"broken": {"unbiased": True}}, "layers.1.attention.o", r"other has no bias there"),
    "viewed, not turned": ({"broken": {"viewed": True}}, "layers.1.attention", r"in another order"),
    "position off by one": ({"broken": {"offset": 1}}, "layers.1.attention", r"element i is element i\+1 of that"),
    "interleaved rope": ({"broken": {"rope": "interleaved"}}, "layers.1.attention", r"in another order"),
    "softmax twice": ({"broken": {"attention": "written", "twice": True}}, "layers.1.attention", ""),
    "one head": ({"broken": {"dead": True}}, "layers.1.attention", ""),
    "swapped gate": ({"broken": {"swapped": True}}, "layers.1.feeding", ""),
    "another activation": ({"broken": {"act": "gelu"}}, "layers.1.feeding", ""),
    "detached residual": ({"broken": {"detached": True}}, "layers.1", ""),
    "no residual": ({"broken": {"unresidual": True}}, "layers.1", ""),
    "another eps": ({"eps": 1e-5}, "layers.0.n1", r"eps is 1e-05 in other's .*: with 1e-06 they agree"),
    "eps outside of the root": ({"form": "outside"}, "layers.0.n1", ""),
    "scaled embedding": ({"embedded": "scaled"}, "", r"its pow reads 5\.65685 times what model's pow reads"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_port_with_a_fault_is_different_at_the_module_that_has_it(name: str) -> None:
    ways, module, words = BROKEN[name]
    given = tokens()
    report = compared(decoder(), decoder(**ways), given, loss=language_loss(given))
    first = report.errors[0]
    assert report.verdict == "different", report.summary()
    assert (first.rule, first.severity, first.module) == ("different", "error", module)
    assert re.search(words, first.message), first.message
    if name != "detached residual":
        assert re.fullmatch(r".*suites/pairs/decoder\.py:\d+", first.source)


PLAIN = ["mask off by one", "no scale", "viewed, not turned", "interleaved rope", "swapped gate", "detached residual", "no residual"]


@pytest.mark.parametrize(("name", "precision"), [(name, LOW[place % len(LOW)]) for place, name in enumerate(PLAIN)])
def test_what_no_rounding_hides_is_different_in_low_precisions_too(name: str, precision: str) -> None:
    ways, module, _ = BROKEN[name]
    given = tokens()
    report = compared(decoder(), decoder(**ways), given, loss=language_loss(given), precision=precision)
    assert report.verdict == "different"
    assert report.errors[0].module == module


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-mixed"])
def test_a_difference_below_the_noise_is_undecidable_and_says_what_decides(precision: str) -> None:
    given = tokens()
    report = compared(decoder(), decoder(eps=1e-5), given, loss=language_loss(given), precision=precision)
    assert not report.errors
    assert report.verdict == "undecidable"
    assert (report.findings[0].rule, report.findings[0].severity) == ("undecidable", "note")
    assert "to decide, compare under 32-true" in report.findings[0].message


def test_weights_that_are_no_longer_tied_are_told_by_their_gradients() -> None:
    given, other = tokens(), decoder()
    other.head.weight = nn.Parameter(other.head.weight.detach().clone())
    report = compared(decoder(), other, given, loss=language_loss(given))
    assert report.verdict == "different"
    assert report.errors[0].phase == "backward"
    assert "embedding.weight and head.weight are one parameter in model, and two in other" in report.errors[0].message
    assert not compared(decoder(), other, given).errors  # forward alone they are the same


def test_sums_in_float16_are_less_accurate_and_the_reference_that_has_them_is_a_note() -> None:
    given = tokens()
    report = compared(decoder(), decoder(broken={"form": "low"}), given)
    first = report.errors[0]
    assert report.verdict == "less accurate"
    assert (first.rule, first.severity, first.module) == ("less-accurate", "error", "layers.1.n1")
    assert re.search(r"decoder\.py:3[0-4]$", first.source)
    turned = compared(decoder(broken={"form": "low"}), decoder(), given)
    assert not turned.errors
    assert [(finding.rule, finding.severity) for finding in turned.findings] == [("less-accurate", "note")]
    assert "the reference (model)" in turned.findings[0].message
    assert turned.verdict == "rounding"


def test_an_error_in_one_row_shows_though_the_norm_hides_it() -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        y[7] *= 1 + 2e-5
        return y

    x = torch.randn(400, 300)
    report = compared(torch.exp, other, x)
    assert report.verdict == "different"
    assert "even without rounding it differs from model in slice 7 of dimension 0 by " in report.errors[0].message
    assert not compared(torch.exp, lambda x: x.exp(), x).errors


@pytest.mark.parametrize(
    ("shape", "part", "said"),
    [
        ((320, 320), (slice(32, 64), slice(64, 96)), "tile of 32 x 32 at [32, 64]"),
        ((4, 6, 40, 40), (2, 3), "[2, 3"),
    ],
)
def test_an_error_in_one_tile_or_head_shows_though_the_norm_hides_it(shape: tuple[int, ...], part: Any, said: str) -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        y[part] *= 1 + 5e-6
        return y

    x = torch.randn(*shape)
    assert said in compared(torch.exp, other, x).errors[0].message
    assert not compared(torch.exp, lambda x: x.exp(), x).errors


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda x: x[:, :-1] * 2, r"has shape \(4, 5\), and model's has \(4, 6\)"),
        (lambda x: torch.where(x > 1, math.nan, x * 2), "Inf or NaN on one side alone"),
        (lambda x: -(x * 2), "-1 times"),
    ],
)
def test_what_needs_no_floor(other: Any, said: str) -> None:
    x = torch.randn(4, 6) + 0.5
    report = compared(lambda x: x * 2, other, x)
    assert report.verdict == "different"
    assert said in report.errors[0].message or re.search(said, report.errors[0].message)


def test_gradients_of_inputs_are_compared() -> None:
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return gradient / 2

    x = torch.randn(5, 3, requires_grad=True)
    report = compared(lambda x: x.tanh(), lambda x: Halved.apply(x).tanh(), x, loss=lambda out: out.square().sum())
    assert report.errors[0].message.startswith("gradient of inputs")
    lost = compared(lambda x: x.tanh(), lambda x: x.detach().tanh() + 0 * x.sum(), x, loss=lambda out: out.square().sum())
    assert lost.verdict == "different"
    assert x.grad is None


def test_weights_after_steps_are_compared() -> None:
    class Sloppy(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad = parameter.grad * 1.001
            return super().step(closure)

    net, x = nn.Linear(8, 4), torch.randn(6, 8)

    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)  # type: ignore[no-any-return]

    steps: dict[str, Any] = {"loss": lambda out: out.square().sum(), "steps": 3}
    assert compared(net, Same(), x, optimizer=lambda held: torch.optim.SGD(held, lr=0.1), **steps).verdict == "bitwise"
    assert compared(net, Same(), x, optimizer=lambda held: torch.optim.SGD(held, lr=0.1), **steps).boundaries[-1].kind == "update"


def test_outputs_are_matched_by_name_and_by_position() -> None:
    x = torch.randn(3, 4)
    named = compared(lambda x: {"a": x, "b": x * 2}, lambda x: {"b": x * 2, "a": x}, x)
    assert named.verdict == "bitwise"
    placed = compared(lambda x: {"a": x, "b": x * 2}, lambda x: (x, x * 2), x)
    assert placed.verdict == "bitwise"
    fewer = compared(lambda x: (x, x * 2), lambda x: (x,), x)
    assert fewer.facts["not_compared"] == ["output[1], which only model returns"]


def test_flipped_decisions_are_followed_and_integers_are_decisions() -> None:
    router, x = nn.Linear(16, 8), torch.randn(2000, 16)

    def chosen(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = router(x)
        return scores.argmax(-1), scores.amax(-1)

    def otherwise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = (x.flip(-1) @ router.weight.flip(-1).t()) + router.bias
        return scores.argmax(-1), scores.amax(-1)

    for precision in ("bf16-mixed", "bf16-true"):
        report = compared(chosen, otherwise, x, precision=precision)
        assert not report.errors, report.summary()
    wrong = compared(chosen, lambda x: (chosen(x)[0] + (chosen(x)[1] > 1), chosen(x)[1]), x)
    assert wrong.verdict == "different"


def test_where_float64_is_refused_float32_is_the_exact_side() -> None:
    x = torch.randn(16, 40)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not torch.float32:
            raise TypeError("this kernel is float32's")
        return x.flip(-1).sum(-1)

    for pair in ((lambda x: x.sum(-1), kernel), (kernel, lambda x: x.sum(-1))):
        report = compared(*pair, x)
        assert not report.errors
        assert report.facts["exact"].startswith("none needed")
    for pair in ((lambda x: x.sum(-1), lambda x: kernel(x) * 1.0001), (lambda x: kernel(x) * 1.0001, lambda x: x.sum(-1))):
        off = compared(*pair, x)
        assert off.verdict == "different"
        assert off.facts["exact"] == "float32: float64 is refused (TypeError: this kernel is float32's)"


def test_the_report_is_told_and_saved() -> None:
    given = tokens()
    report = compared(decoder(), decoder(eps=1e-5), given, loss=language_loss(given))
    first, *rest = report.summary().splitlines()
    assert first.startswith("different: output: other computes something else: even without rounding it differs from model by ")
    assert any("cure: correct the place named" in line for line in rest)
    assert '"verdict": "different"' in report.to_json()
    with pytest.raises(precheck.PrecisionFailure, match="different: output"):
        report.raise_for_errors()
    allowed = compared(decoder(), decoder(eps=1e-5), given, allow={"different": "a newer eps"})
    assert not allowed.errors
    assert "allowed: a newer eps" in allowed.findings[0].message


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"other": 3}, "other is an int; pass a torch.nn.Module"),
        ({"model": None}, "model is None"),
        ({"match": ["a"]}, "pass a mapping of names of other to names of model"),
        ({"match": {"layerz": "layers"}}, "match names 'layerz', which other has not; it has embedding.weight"),
        ({"match": {"layers": "h"}}, "match names 'h', which model has not"),
        ({"loss": "mean"}, "loss is a str"),
        ({"steps": 0}, "steps=0"),
        ({"steps": 2}, "steps=2 without an optimizer"),
        ({"allow": {"differ": "x"}}, "do you mean different"),
    ],
)
def test_arguments_that_cannot_be_compared(given: dict[str, Any], said: str) -> None:
    arguments = {"model": decoder(), "other": decoder(), "inputs": tokens(), **given}
    with pytest.raises(precheck.InputError, match=re.escape(said)):
        precheck.compare(**arguments)
    with pytest.raises(precheck.PrecisionError):
        precheck.compare(decoder(), decoder(), tokens(), precision="bf17")


def test_nothing_of_the_users_is_changed() -> None:
    """Weights, gradients, buffers, modes, attributes and random states, on both sides, after a verdict and after an exception."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.2), nn.Flatten(), nn.Linear(4 * 36, 3))
    other = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=1e-3), nn.Dropout(0.2), nn.Flatten(), nn.Linear(4 * 36, 3))
    other.load_state_dict(model.state_dict())
    other[2].eval()
    x = torch.randn(4, 3, 8, 8, requires_grad=True)
    for net in (model, other):
        net[0].weight.grad = torch.randn_like(net[0].weight)

    def state() -> list[Any]:
        kept: list[Any] = [torch.get_rng_state(), x.detach().clone(), x.grad, [module.training for net in (model, other) for module in net.modules()]]
        for net in (model, other):
            kept += [value.detach().clone() for value in net.state_dict().values()]
            kept += [None if each.grad is None else each.grad.clone() for each in net.parameters()]
            kept.append([dict(vars(module)) .keys() for module in net.modules()])
            kept.append([len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules()])
        return kept

    def same(a: Any, b: Any) -> bool:
        return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b

    before = state()
    for precision in ("32-true", "bf16-true", "16-mixed"):
        assert compared(model, other, x, precision=precision, loss=lambda out: out.square().mean(), **ADAM).errors
        assert all(map(same, before, state()))
    with pytest.raises(RuntimeError, match="on purpose") as raised:
        compared(model, lambda x: (_ for _ in ()).throw(RuntimeError("on purpose")), x)
    assert getattr(raised.value, "__notes__", ["raised by other, on inputs that model takes"]) == ["raised by other, on inputs that model takes"]
    assert all(map(same, before, state()))


def test_dropout_draws_the_same_on_both_sides() -> None:
    given = tokens()
    model, other = decoder(dropout=0.3), decoder(dropout=0.3, attention="written")
    assert not compared(model, other, given, loss=language_loss(given)).errors
    assert compared(model, decoder(dropout=0.25), given, loss=language_loss(given)).verdict == "different"


def test_numpy_and_python_draw_the_same_on_both_sides() -> None:
    def noisy(factor: float) -> Any:
        return lambda x: x * factor * float(numpy.random.rand()) + random.random()

    x = torch.randn(4, 6)
    assert not compared(noisy(1), noisy(1), x).errors
    assert compared(noisy(1), noisy(1.01), x).verdict == "different"


def test_what_is_zero_on_paper_agrees_and_what_is_not_does_not() -> None:
    """The gradient of a key's bias is zero: a side that adds a real one to it is caught."""

    class Leaking(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return gradient + 1e-3

    given = tokens()
    model, other = decoder(), decoder()
    other.layers[1].attention.k.forward = lambda x: Leaking.apply(F.linear(x, other.layers[1].attention.k.weight, other.layers[1].attention.k.bias))  # type: ignore[assignment]
    report = compared(model, other, given, loss=language_loss(given))
    assert report.verdict == "different"
    assert report.errors[0].phase == "backward"


def test_what_torch_compile_made_is_run_as_such() -> None:
    model, x = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), torch.randn(5, 8)
    compiled = torch.compile(model, backend="aot_eager")
    seen: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(len(inputs))
        return lambda *given: tuple(each * (1 + 1e-3) for each in graph(*given))

    assert compared(model, compiled, x, loss=lambda out: out.sum()).verdict == "bitwise"
    off = compared(model, torch.compile(model, backend=backend), x)
    assert seen
    assert off.verdict == "less accurate", "the compiled run alone is off, the code that was compiled is not"
