"""What people who quantise in their own code meet first: functions and modules that return codes, and what a summary says of a healthy quantiser."""

from __future__ import annotations

import pytest
import torch
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
