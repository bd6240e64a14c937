"""Histograms of exponents: counted right, of the reference, without the loss scale, and nowhere but in a shadow run."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import precheck
from precheck.checking import check
from precheck.findings import Binades
from precheck.goldens.lifecycle import refresh
from precheck.measurement import job_of
from precheck.observe.recording import exponents
from precheck.observe.recording.exponents import counted, tally
from precheck.observe.shadow.comparing import fetching
from precheck.observe.shadow.mode import Shadow
from precheck.observe.shadow.places.module_tracker import ModuleTracker


def binades(values: torch.Tensor, scale: float = 1.0) -> Binades:
    return counted(Binades("x", "output", 1, "float16", values.numel(), scale=scale), tally(values))


def by_hand(values: torch.Tensor, lowest: int) -> dict[int, int]:
    """Elements by exponent as Python's frexp has them; what is below the format's normal numbers together in the one below these."""
    finite = [abs(each) for each in values.reshape(-1).tolist() if each and math.isfinite(each)]
    return dict(Counter(max(lowest, math.frexp(each)[1] - 1) for each in finite))


def as_counts(found: Binades) -> dict[int, int]:
    return {found.least + place: count for place, count in enumerate(found.counts) if count}


ODD = [0.0, -0.0, 1.0, -1.0, 1.5, 2.0, -0.1, 1e-30, 3e38, 65504.0, 65520.0, 6e-8, 2.0**-126, 2.0**-127, 1e-45]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_few_elements_are_counted_as_many_are(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.tensor([*ODD, math.inf, -math.inf, math.nan], dtype=dtype).expand(3, -1).t()
    few = tally(values)
    monkeypatch.setattr(exponents, "FEW", 0)
    assert torch.equal(few, tally(values))


@pytest.mark.parametrize(("dtype", "lowest"), [(torch.float32, -127), (torch.float64, -1023), (torch.bfloat16, -127), (torch.float16, -127)])
def test_counts_are_those_of_frexp(dtype: torch.dtype, lowest: int) -> None:
    torch.manual_seed(0)
    values = torch.cat([torch.tensor(ODD), torch.randn(1000) * 10.0 ** torch.randint(-4, 4, (1000,))]).to(dtype)
    values = torch.cat([values, torch.tensor([math.inf, -math.inf, math.nan]).to(dtype)])
    found = binades(values)
    assert as_counts(found) == by_hand(values, lowest)
    assert found.zeros == int((values == 0).sum())
    assert found.nonfinite == int((~values.isfinite()).sum())
    assert sum(found.counts) + found.zeros + found.nonfinite == values.numel()


@pytest.mark.parametrize(
    "values",
    [
        torch.randn(6, 5).t(), torch.randn(1, 3).expand(4, 3), torch.randn(3, 4)[:, ::2], torch.randn(()),
        torch.view_as_complex(torch.randn(5, 2)).conj(),
    ],
    ids=["turned", "expanded", "strided", "number", "complex"],
)  # fmt: skip
def test_any_layout_is_counted(values: torch.Tensor) -> None:
    real = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    assert as_counts(binades(values)) == by_hand(real, -127)


def test_nothing_but_zeros_has_no_binades() -> None:
    found = binades(torch.zeros(4))
    assert (found.counts, found.zeros, found.nonfinite) == ((), 4, 0)


@pytest.mark.parametrize("scale", [2.0**16, 2.0**-3, 1.0])
def test_the_loss_scale_is_divided_out(scale: float) -> None:
    values = torch.tensor([1.0, 1.9, 3.0, 0.01])
    assert as_counts(binades(values * scale, scale)) == by_hand(values, -127)


class Squares(torch.nn.Module):
    """Overflows float16: (x w)^2 of some 300."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = (self.linear(x) * 1000).square()
        return result


def failed() -> tuple[Squares, torch.Tensor, precheck.Report]:
    torch.manual_seed(0)
    model, inputs = Squares(), torch.randn(8, 16)
    return model, inputs, precheck.measure(model, inputs, precision="16-true", loss=lambda out: out.float().mean())


def rows(report: precheck.Report, kind: str) -> dict[str, Binades]:
    return {row.tensor: row for row in report.exponents if row.kind == kind}


def test_of_a_large_tensor_a_sample_is_counted_whose_shares_are_the_whole_s() -> None:
    """Shares of so many elements are known to five standard deviations."""
    x = torch.randn(1024, 512, generator=torch.Generator().manual_seed(0)).half()
    with precheck.watch(torch.nn.Identity()) as report:
        weight = torch.nn.Parameter(torch.ones(1024, 512, dtype=torch.half))
        (weight * x).sum().backward()
    (found,) = (row for row in report.exponents if row.kind == "parameter-gradient")
    counted_of = sum(found.counts) + found.zeros + found.nonfinite
    assert found.elements == x.numel()
    assert exponents.LOOKED_AT <= counted_of < 1.1 * exponents.LOOKED_AT
    whole = by_hand(x.float(), -127)
    for binade, count in whole.items():
        share = count / x.numel()
        known_to = 5 * math.sqrt(max(share * (1 - share), 1 / counted_of) / counted_of)
        assert as_counts(found).get(binade, 0) / counted_of == pytest.approx(share, abs=known_to)


class TestMeasure:
    def test_histograms_are_of_the_float32_reference(self) -> None:
        model, inputs, report = failed()
        stored = Squares().half()
        stored.load_state_dict(model.half().state_dict())
        exact = stored.float()  # weights and inputs as float16 stores them
        hidden = exact.linear(inputs.half().float())
        result = (hidden * 1000).square()
        result.mean().backward()
        assert as_counts(rows(report, "output")["linear"]) == by_hand(hidden, -127)
        assert as_counts(rows(report, "output")["output"]) == by_hand(result, -127)
        assert exact.linear.weight.grad is not None
        assert as_counts(rows(report, "parameter-gradient")["linear.weight"]) == by_hand(exact.linear.weight.grad, -127)
        assert rows(report, "output")["output"].dtype == "float16"

    def test_each_boundary_of_the_first_step_has_one(self) -> None:
        _, _, report = failed()
        known = {(row.kind, row.tensor, row.step) for row in report.exponents}
        assert {(row.kind, row.tensor, row.step) for row in report.boundaries if row.kind != "loss"} <= known

    def test_a_result_that_overflowed_has_one_and_its_line(self) -> None:
        _, _, report = failed()
        opened = [row for row in report.exponents if row.kind == "op" and row.phase == "forward"]
        assert [row.op for row in opened] == ["aten.pow.Tensor_Scalar"]
        assert opened[0].least + len(opened[0].counts) - 1 >= 16, "beyond 65504"
        assert any((row.op, row.source, row.module, row.phase) == (opened[0].op, opened[0].source, opened[0].module, "forward") for row in report.ops)

    def test_a_healthy_one_counts_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exponents, "tally", _refused)
        report = precheck.measure(torch.nn.Linear(8, 8), torch.randn(4, 8), precision="bf16-mixed", loss=lambda out: out.sum())
        assert report.exponents == []
        assert not report.errors


@pytest.mark.parametrize("asked", [True, False])
def test_a_check_that_passes_counts_where_every_op_is_asked_for(tmp_path: Path, asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, path = torch.nn.Linear(8, 8), torch.randn(4, 8), tmp_path / "g.safetensors"
    refresh(path, job_of(model, inputs), "all")
    if not asked:
        monkeypatch.setattr(exponents, "tally", _refused)
    report = check(model, inputs, golden=path, precision="bf16-mixed", ops=asked)
    assert not report.errors
    assert [(row.kind, row.tensor) for row in report.exponents] == ([("output", "output")] if asked else [])


def _refused(values: torch.Tensor) -> Any:
    raise AssertionError("counted without a shadow")


def watched(scale: float | None, steps: int = 2) -> precheck.Report:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    with precheck.watch(precision="16-mixed") as report:
        for _ in range(steps):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(8, 16)).float().square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    return report


class TestWatch:
    def test_of_each_parameter_the_first_gradient_is_kept(self) -> None:
        report = watched(None)
        assert {name: row.step for name, row in rows(report, "parameter-gradient").items()} == dict.fromkeys(
            ("0.weight", "0.bias", "2.weight", "2.bias"), 1
        )

    def test_a_scaled_run_has_the_histograms_of_one_that_is_not(self) -> None:
        plain, scaled = (rows(watched(scale), "parameter-gradient") for scale in (None, 2.0**10))
        assert {row.scale for row in scaled.values()} == {2.0**10}
        assert {row.scale for row in plain.values()} == {1.0}
        assert {name: as_counts(row) for name, row in scaled.items()} == {name: as_counts(row) for name, row in plain.items()}

    def test_counting_is_no_op_of_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        counted_too = watched(None)
        monkeypatch.setattr(exponents.Exponents, "gradient", lambda *given: None)
        without = watched(None)
        assert counted_too.exponents
        assert not without.exponents
        assert counted_too.facts == without.facts
        assert [(row.op, row.calls) for row in counted_too.ops] == [(row.op, row.calls) for row in without.ops]

    def test_parameters_without_a_name_are_told_apart(self) -> None:
        with precheck.watch() as report:
            ones, twos = (torch.nn.Parameter(torch.full((4,), value, dtype=torch.bfloat16)) for value in (1.0, 2.0))
            (ones * twos).sum().backward()
        assert sorted(row.least for row in report.exponents if row.kind == "parameter-gradient") == [0, 1], "each the other's value"

    def test_of_a_line_that_overflows_again_and_again_the_first_is_kept(self) -> None:
        with precheck.watch() as report:
            for size in (300.0, 1000.0):
                x = torch.full((8,), size, dtype=torch.float16)
                (x * x).sum()
        (only,) = (row for row in report.exponents if row.kind == "op")
        assert as_counts(only) == {16: 8}, "300 squared is between 2^16 and 2^17"
        assert (only.op, only.elements) == ("aten.mul.Tensor", 8)
        assert report.findings[0].op == only.op

    def test_what_became_infinite_takes_the_place_of_what_became_zero(self) -> None:
        with precheck.watch() as report:
            for size in (1e-4, 300.0, 1e-4, 1000.0):
                x = torch.full((8,), size, dtype=torch.float16)
                (x * x).sum()
        (only,) = (row for row in report.exponents if row.op == "aten.mul.Tensor")
        assert as_counts(only) == {16: 8}

    def test_whole_numbers_that_moved_and_digits_that_were_lost_are_counted(self) -> None:
        with precheck.watch() as report:
            places = torch.arange(2000).to(torch.bfloat16)
            x = (torch.linspace(1, 1.001, 64).bfloat16() + 0.001) - torch.ones(64, dtype=torch.bfloat16)
        assert [row.op for row in report.exponents] == ["aten._to_copy.default", "aten.sub.Tensor"]
        assert report.exponents[0].least + len(report.exponents[0].counts) - 1 == 10, "up to 1999"
        assert places.numel() == 2000
        assert x.numel() == 64

    def test_what_a_healed_or_inherited_infinity_follows_is_not_counted_again(self) -> None:
        with precheck.watch() as report:
            x = torch.full((8,), 300.0, dtype=torch.float16)
            y = x * x
            (y + 1).sum()
        assert [row.op for row in report.exponents] == ["aten.mul.Tensor"]

    def test_is_the_same_on_an_accelerator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        here = of_a_backward_pass()
        assert {row.kind for row in here} == {"parameter-gradient", "op"}
        monkeypatch.setattr(fetching, "elsewhere", lambda tensor: True)
        assert of_a_backward_pass() == here

    def test_no_tensor_is_kept(self) -> None:
        report = watched(None)
        for row in report.exponents:
            assert {type(value) for value in dataclasses.astuple(row)} <= {str, int, float, tuple}
            assert {type(count) for count in row.counts} <= {int}


def of_a_backward_pass() -> list[Binades]:
    torch.manual_seed(0)
    linear, inputs = torch.nn.Linear(16, 4, dtype=torch.float16), 300 * torch.ones(8, 16, dtype=torch.float16)
    where = ModuleTracker()
    shadow = Shadow(where)
    with where.followed(), shadow:
        (linear(inputs).sum() + (inputs * inputs).sum()).backward()
    return sorted(shadow.finish().exponents, key=lambda row: (row.kind, row.tensor))
