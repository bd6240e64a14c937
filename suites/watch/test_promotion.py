"""Formats that spread by type promotion, and what was asked for."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import precheck
from precheck.findings import Finding

LOW, WIDE = torch.bfloat16, torch.float32
Forward = Callable[["Layers", torch.Tensor], torch.Tensor]


class Layers(nn.Module):
    """Two layers, between which `between` does what it likes; the second takes its weight in the format of what comes."""

    def __init__(self, between: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.between = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), between
        self.scale, self.table = nn.Parameter(torch.linspace(0.5, 1, 8)), torch.linspace(0.5, 1, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.between(self, self.first(x))
        return functional.linear(x, self.second.weight.to(x.dtype))


def promoted(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x * layers.table)


def cast(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x * layers.table.to(x.dtype))


def cast_back(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x * layers.table).to(LOW)


def asked_for(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x.float() * layers.table)


def learnt(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x * layers.scale.float())


def masked(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    return x * (torch.arange(4)[:, None] < 3).float()


def normalised(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm((x * layers.table), (8,)).to(LOW)


def residual(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    return torch.ones(4, 8) + x * layers.table


def found(between: Forward, dtype: torch.dtype, precision: str | None = None, *, autocast: bool = False) -> list[Finding]:
    model = Layers(between).to(dtype)
    with precheck.watch(model, precision=precision) as report, torch.autocast("cpu", LOW) if autocast else contextlib.nullcontext():
        model(torch.randn(4, 8).to(dtype)).float().square().mean().backward()
    return report.findings


def test_a_product_that_runs_in_float32_since_a_table_did_is_a_warning() -> None:
    (finding,) = found(promoted, LOW)
    assert (finding.rule, finding.severity, finding.op) == ("dtype-leak", "warning", "aten.mul.Tensor")
    assert "this bfloat16 tensor of shape [4, 8] becomes float32, since it meets a float32 tensor of shape [8]" in finding.message
    assert re.search(r"aten\.mm\.default at .*:\d+, runs in float32, on a widened copy of the weight", finding.message)


@pytest.mark.parametrize("between", [cast, cast_back, asked_for, learnt])
def test_what_is_cast_or_asked_for_is_no_leak(between: Forward) -> None:
    assert not found(between, LOW)


@pytest.mark.parametrize("between", [cast, asked_for, learnt, normalised, residual])
def test_autocast_casts_for_its_products_by_itself(between: Forward) -> None:
    assert not found(between, WIDE, autocast=True)


@pytest.mark.parametrize(("between", "ops"), [(promoted, "2 ops run"), (masked, "1 op runs")])
def test_float32_between_two_products_of_autocast_that_a_table_or_a_mask_makes_is_a_warning(between: Forward, ops: str) -> None:
    (finding,) = found(between, WIDE, autocast=True)
    assert (finding.rule, finding.severity, finding.op) == ("dtype-leak", "warning", "aten.mul.Tensor")
    turned = rf"this bfloat16 tensor of shape \[4, 8\] becomes float32, since it meets a float32 tensor of shape \[.*\]\. {ops} in float32 under"
    assert re.search(turned, finding.message)
    cast = r"cast to \w+ \(aten\._to_copy\) at .*:\d+ casts back"
    assert re.search(rf"{cast}: \d+% of what the forward pass makes takes twice the memory", finding.message)


@pytest.mark.parametrize("written_out", [False, True])
def test_the_bias_that_a_linear_under_vmap_adds_is_torchs_to_mix(written_out: bool) -> None:
    """Autocast casts the product's operands only. The user of a Linear can't cast its bias, who writes the sum out can."""
    wide, last = nn.Linear(8, 16), nn.Linear(16, 2)
    weight, bias = torch.randn(3, 16, 8), torch.randn(3, 16)

    def one(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if written_out:
            return x @ weight.T + bias
        result: torch.Tensor = torch.func.functional_call(wide, {"weight": weight, "bias": bias}, (x,))
        return result

    x = torch.randn(32, 8)
    with precheck.watch() as report, torch.autocast("cpu", LOW):
        kept = last(torch.relu(torch.func.vmap(one)(weight, bias)))
    assert [finding.rule for finding in report.findings] == ["dtype-leak"] * written_out
    assert bool(kept.isfinite().all())


def test_a_small_stretch_of_float32_is_not_worth_a_word() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 512), nn.Linear(512, 8)
            self.table = torch.linspace(0.5, 1, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.third(torch.relu(self.second(self.first(x) * self.table)))

    with precheck.watch() as report, torch.autocast("cpu", LOW):
        kept = Wide()(torch.randn(4, 8))
    assert not report.findings
    assert bool(kept.isfinite().all())


def low_table(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    table = layers.table.to(LOW)
    return x * table


def one_line(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    return x * layers.table.to(LOW).float()


def own_autocast(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", LOW):
        y = layers.first(x)
    return y.float() * layers.table


def test_a_low_table_in_a_run_that_is_to_be_float32() -> None:
    finding = found(low_table, WIDE, "32-true")[0]
    assert (finding.rule, finding.severity, finding.op) == ("dtype-leak", "error", "aten._to_copy.default")
    assert "stores bfloat16 in a float32 run" in finding.message
    assert re.search(r"aten\.mul\.Tensor at .*:\d+ reads it: one rounding is 0\.0039, where float32's is 6e-08", finding.message)


@pytest.mark.parametrize("between", [promoted, one_line, own_autocast])
def test_roundings_that_are_meant_and_autocast_of_the_codes_own(between: Forward) -> None:
    assert not [finding for finding in found(between, WIDE, "32-true") if finding.rule == "dtype-leak"]
