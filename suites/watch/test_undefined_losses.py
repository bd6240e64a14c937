"""A loss or gradient that is Inf or NaN in float32 too: watch() warns of the op that makes it of finite numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import precheck
from precheck.findings import Finding

LOW = torch.bfloat16


def learned(loss: Callable[[torch.Tensor], torch.Tensor], kind: torch.dtype = LOW) -> list[Finding]:
    """What is told of a step of a small model under autocast, whose loss is made of eight numbers by `loss`."""
    torch.manual_seed(0)
    layer, inputs = nn.Linear(4, 8), torch.randn(6, 4)
    with precheck.watch() as report:
        with torch.autocast("cpu", kind):
            guess = layer(inputs)
        loss(guess.float().sum(0)).backward()
    return [finding for finding in report.findings if finding.rule in ("nan", "overflow", "vanished-constant")]


def weighed(guess: torch.Tensor) -> torch.Tensor:
    share = torch.arange(8.0) + 0 * guess.detach()
    return (guess * (share.clamp(max=2) / share)).mean()


def lengths(guess: torch.Tensor) -> torch.Tensor:
    return (guess * 0).square().sum().sqrt()  # nought, and not differentiable there


def apart(guess: torch.Tensor) -> torch.Tensor:
    far = torch.full((8,), torch.inf)
    return ((guess + far) - far).mean()


def without_nought(guess: torch.Tensor) -> torch.Tensor:
    share = torch.arange(8.0)
    return (guess * torch.where(share == 0, 1.0, share.clamp(max=2) / share)).mean()


def masked(guess: torch.Tensor) -> torch.Tensor:
    return -torch.log_softmax(guess + torch.log((torch.arange(8) < 5).float()), -1)[:5].mean()


def test_a_division_of_nought_by_nought_is_named() -> None:
    (found,) = learned(weighed)
    assert (found.rule, found.severity, found.op) == ("nan", "warning", "aten.div.Tensor")
    assert "the loss is NaN in float32 too, in step 1: it comes from Inf or NaN that is made of finite numbers here" in found.message
    assert found.source.endswith(f"test_undefined_losses.py:{weighed.__code__.co_firstlineno + 2}")


def test_a_gradient_that_is_lost_behind_a_right_loss_is_named() -> None:
    (found,) = learned(lengths)
    assert (found.rule, found.severity, found.phase) == ("nan", "warning", "backward")
    assert "the gradient of " in found.message
    assert "is NaN in float32 too" in found.message


def test_where_no_function_has_a_pole_the_last_op_is_named() -> None:
    (found,) = learned(apart)
    assert found.severity == "warning"
    assert "is not known" in found.message


@pytest.mark.parametrize("loss", [without_nought, masked], ids=lambda loss: loss.__name__)
def test_inf_and_nan_that_are_left_out_are_healthy(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert not learned(loss)


def given(numbers: torch.Tensor, *, trains: bool = True) -> list[Finding]:
    """What is told of a layer that gets these numbers, of which one row is left out of the loss by `where` if it has none."""
    layer = nn.Linear(4, 1)
    with precheck.watch() as report:
        low = numbers.to(LOW)
        low = low if trains else torch.where(low.isnan(), 0, low)
        layer(low.float()).square().mean().backward()
    return report.findings


def test_nan_that_the_block_was_given_is_told_where_it_is_read() -> None:
    missing = torch.ones(6, 4).index_fill(0, torch.tensor(2), torch.nan)
    (found,) = given(missing)
    assert (found.rule, found.severity, found.op) == ("nan", "warning", "aten._to_copy.default")
    assert "what is read here has NaN already" in found.message
    assert found.remedy.startswith("take the NaN out first, by torch.nan_to_num")
    assert not given(missing, trains=False)
    assert not given(torch.ones(6, 4))


def test_a_result_with_nan_that_was_given_is_a_note() -> None:
    missing = torch.ones(6, 4).index_fill(0, torch.tensor(2), torch.nan)
    with precheck.watch() as report:
        held = missing.to(LOW) * 2
    assert held.numel()
    assert [(each.rule, each.severity) for each in report.findings] == [("nan", "note")]


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = (x * 0).to(LOW)
        return x * (low / low.norm())


def test_measure_names_the_op_too() -> None:
    layers = nn.Sequential(nn.Linear(4, 4), Centred())
    (found,) = precheck.measure(layers, torch.randn(6, 4), loss=lambda out: out.square().mean()).findings
    assert (found.rule, found.severity, found.op) == ("nan", "warning", "aten.div.Tensor")
    assert found.message.endswith("it comes from Inf or NaN that is made of finite numbers here; the check is inconclusive")
    assert found.source.endswith(f"test_undefined_losses.py:{Centred.forward.__code__.co_firstlineno + 2}")


def test_an_overflow_of_the_format_explains_the_loss() -> None:
    def far(guess: torch.Tensor) -> torch.Tensor:
        large = (guess.abs() + 1).to(torch.float16) * 60000
        return (large - large).float().mean() / guess.detach().sub(guess.detach()).sum()

    assert [finding.severity for finding in learned(far, torch.float16)] == ["error"]


def test_beside_float64_it_says_so() -> None:
    layer = nn.Linear(4, 8)
    with precheck.watch(precision="32-true") as report:
        weighed(layer(torch.ones(6, 4)).sum(0)).backward()
    assert ["float64 too" in finding.message for finding in report.findings] == [True]


def kept(code: Callable[[torch.Tensor], torch.Tensor]) -> list[Finding]:
    """What is told where the result of `code` on numbers of up to two hundred, made in bfloat16, is kept."""
    with precheck.watch() as report:
        held = code((torch.linspace(-200, 200, 8).to(LOW) * 1.0).float())
    assert held.numel()
    return [finding for finding in report.findings if finding.rule in ("nan", "overflow")]


def test_an_exponential_beyond_float32_is_named() -> None:
    (found,) = kept(lambda numbers: (numbers.exp() - numbers).mean())
    assert (found.severity, found.op) == ("warning", "aten.exp.default")
    assert "the result is Inf in float32 too, in step 1: an exponential of finite numbers is beyond float32 here" in found.message


@pytest.mark.parametrize("code", [
    lambda numbers: torch.where(numbers > 20, numbers, torch.log1p(numbers.exp())),
    lambda numbers: numbers.exp().clamp(max=100),
    lambda numbers: 1 / (1 + (-numbers).exp()),
    lambda numbers: torch.log(numbers.relu()),
], ids=["softplus", "clamp", "sigmoid", "log-of-nought"])  # fmt: skip
def test_an_infinity_that_is_bounded_or_meant_is_healthy(code: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert not kept(code)


def raced(chosen: Callable[[torch.Tensor], torch.Tensor], least: float) -> list[Finding]:
    """What is told of a choice by Gumbel's trick among eight words, of which one is masked and has waited for nothing."""
    with precheck.watch(precision="32-true") as report:
        waiting = torch.linspace(0, 3, 8).clamp(min=least)
        likely = torch.log_softmax(torch.ones(8).masked_fill(torch.arange(8) < 1, -torch.inf), -1)
        kept = chosen(likely - waiting.log())
    del kept
    return [finding for finding in report.findings if finding.rule == "nan"]


def test_a_choice_by_a_number_that_is_nan_is_named() -> None:
    (found,) = raced(lambda scores: scores.argmax(), 0.0)
    assert (found.severity, found.op) == ("warning", "aten.log.default")
    assert "the number that argmax chooses by is NaN in float64 too" in found.message


@pytest.mark.parametrize(("chosen", "least"), [
    (lambda scores: scores.argmax(), 1e-6),
    (lambda scores: scores.nan_to_num(-torch.inf).argmax(), 0.0),
    (lambda scores: scores[1:].argmax(), 0.0),
], ids=["held", "left-out", "not-read"])  # fmt: skip
def test_a_choice_among_numbers_is_healthy(chosen: Callable[[torch.Tensor], torch.Tensor], least: float) -> None:
    assert not raced(chosen, least)


def test_only_the_first_step_is_told() -> None:
    """The weights are lost after it, and so is every later loss."""
    layer = nn.Linear(4, 8).to(LOW)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with precheck.watch() as report:
        for _ in range(3):
            weighed(layer(torch.ones(6, 4, dtype=LOW)).float().sum(0)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [finding.step for finding in report.findings if finding.rule == "nan"] == [1]
