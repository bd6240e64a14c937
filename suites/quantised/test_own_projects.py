"""What people who quantise in their own code meet first: functions and modules that return codes, and what a summary says of a healthy quantiser.

Thirty healthy programs, each a small model or training, were committed before precheck was run on them. As found 0 were accused.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import whole_compressions
import whole_models
import whole_trainings
from float8_by_hand import E4M3, normal
from torch import nn

import precheck


def cast(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x.float() / scale).clamp(-448, 448).to(E4M3)


class Quantiser(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.detach().float().abs().amax() / 448
        return cast(x, scale), scale


class Model(nn.Module):
    """A function and a module of it return codes in float8."""

    def __init__(self, wrong: float = 1.0) -> None:
        super().__init__()
        self.first, self.quantiser, self.last, self.wrong = nn.Linear(16, 16), Quantiser(), nn.Linear(16, 4), wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes, scale = self.quantiser(self.first(x))
        each = torch.where(torch.arange(16) < 8, scale, scale * self.wrong)
        return self.last((codes.float() * each).to(x.dtype))


class Codes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(E4M3)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "32-true"])
def test_functions_and_modules_may_return_float8(precision: str) -> None:
    torch.manual_seed(0)
    report = precheck.measure(Model(), normal(8, 16), precision=precision)
    assert not report.findings
    names = {row.tensor for row in report.boundaries}
    assert {"first", "last", "quantiser[1]"} <= names  # the scale is a number
    assert not any("cast" in name or name == "quantiser[0]" for name in names)  # codes are none: their unit is the scale
    with pytest.raises(precheck.InputError, match=r"float8_e4m3fn.* numbers in float8 are codes: return what they stand for"):
        precheck.measure(Codes(), normal(8, 16), precision=precision)


def test_a_wrong_scale_in_such_a_model_is_found() -> None:
    torch.manual_seed(0)
    (error,) = precheck.measure(Model(wrong=3.0), normal(8, 16), precision="bf16-mixed").errors
    assert error.rule == "wrong-scale"


class Stored(nn.Module):
    """Codes, scales as powers of two and codes of four bits in buffers, and codes in a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        w = normal(16, 1, 32) / 4
        scale = torch.exp2(torch.ceil(torch.log2(w.abs().amax(-1, keepdim=True) / 448)))
        self.register_buffer("codes", (w / scale).to(E4M3))
        self.register_buffer("scale", scale.to(torch.float8_e8m0fnu))
        self.register_buffer("packed", torch.arange(256, dtype=torch.uint8).view(16, 16).view(torch.float4_e2m1fn_x2))
        self.frozen = nn.Parameter((normal(32, 32, seed=1) / 8).to(E4M3), requires_grad=False)
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bits = torch.stack([self.packed.view(torch.uint8) & 15, self.packed.view(torch.uint8) >> 4], -1).view(16, 32)
        w = (self.codes.view(torch.uint8).view(E4M3).float() * self.scale.float()).view(16, 32) + bits.float() / 64
        return self.last(x @ self.frozen.to(x.dtype) @ w.t().to(x.dtype))


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-true", "32-true"])
def test_codes_in_buffers_stay_codes_in_every_run(precision: str) -> None:
    torch.manual_seed(0)
    model = Stored()
    before = {name: (each.dtype, each.view(torch.uint8).clone()) for name, each in (*model.named_buffers(), ("frozen", model.frozen))}
    report = precheck.measure(model, normal(8, 32), precision=precision, loss=lambda out: out.float().square().mean())
    assert not report.findings
    for name, (dtype, content) in before.items():
        assert getattr(model, name).dtype is dtype
        assert torch.equal(getattr(model, name).view(torch.uint8), content)


class Passed(nn.Module):
    """Gradients pass the rounding of activations as if it were not there."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first, self.last, self.dtype = nn.Linear(16, 16), nn.Linear(16, 4), dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        scale = y.detach().abs().amax().float() / torch.finfo(self.dtype).max
        held = ((y.float() / scale).to(self.dtype).float() * scale).to(y.dtype)
        return self.last(y + (held - y).detach())


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true"])
@pytest.mark.parametrize("dtype", [E4M3, torch.float8_e5m2])
def test_a_number_minus_its_own_rounding_to_codes_is_that_rounding(precision: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    assert not precheck.measure(Passed(dtype), normal(32, 16), precision=precision, loss=lambda out: out.float().square().mean()).findings


class Cancelling(nn.Module):
    """Two numbers that are nearly equal, of which each was rounded to codes by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        scale = y.detach().abs().amax().float() / 448
        held, other = ((each.float() / scale).to(E4M3).float() * scale for each in (y, y * 1.001))
        return self.last((1000 * (other - held)).to(y.dtype))


def test_a_difference_of_two_roundings_is_no_rounding() -> None:
    torch.manual_seed(0)
    errors = precheck.measure(Cancelling(), normal(32, 16), precision="bf16-mixed").errors
    assert errors
    assert "a difference of nearly equal numbers" in errors[0].message


@pytest.mark.parametrize(("within", "said"), [
    (True, "no errors: quantisers followed on 1 line, none of "),
    (False, "no errors: nothing to compare, none of "),
])  # fmt: skip
def test_a_summary_says_whether_a_quantiser_was_followed(within: bool, said: str) -> None:
    w, x = normal(16, 16), normal(4, 16, seed=1)

    def packed() -> tuple[torch.Tensor, torch.Tensor]:
        scale = w.abs().amax(1, keepdim=True) / 127
        return torch.round(w / scale).to(torch.int8), scale

    codes, scale = packed()
    with precheck.watch() as report:
        codes, scale = packed() if within else (codes, scale)
        x @ (codes.float() * scale).t()
    assert report.summary().startswith(said)
    assert report.facts.get("quantisers") == (1 if within else None)


@pytest.mark.parametrize(
    "program", whole_models.HEALTHY + whole_trainings.HEALTHY + whole_compressions.HEALTHY, ids=lambda program: str(program.__name__)
)
def test_whole_programs_are_left_in_peace(program: Callable[[], torch.Tensor]) -> None:
    with precheck.watch() as report:
        program()
    assert not report.findings
