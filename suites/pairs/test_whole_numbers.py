"""Whole numbers that a model returns are compared too: what nothing rounds is another function where it differs, and a decision is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import precheck

CODES = torch.arange(24).reshape(4, 6)


def test_whole_numbers_that_nothing_rounds_are_equal_or_wrong() -> None:
    same = precheck.compare(lambda x: x.cumsum(-1), lambda x: torch.stack([x[:, : n + 1].sum(-1) for n in range(6)], -1), CODES)
    assert same.verdict == "bitwise"
    off = precheck.compare(lambda x: x.cumsum(-1), lambda x: x.cumsum(-1) - (x > 20).long(), CODES)
    assert off.verdict == "different"
    assert off.errors[0].message.startswith("output: 3 whole numbers of it are others than model's, where nothing is rounded")


def test_a_port_may_return_them_in_another_format() -> None:
    assert precheck.compare(lambda x: x + 1, lambda x: (x + 1).int(), CODES).verdict == "rounding"


class Chosen(nn.Module):
    """The places of the largest, of scores that two orders of a sum round apart."""

    def __init__(self, parts: bool = False, last: bool = False) -> None:
        super().__init__()
        self.parts, self.last, self.scores = parts, last, nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w, b = self.scores.weight, self.scores.bias
        scores = x[:, 32:] @ w[:, 32:].t() + (x[:, :32] @ w[:, :32].t() + b) if self.parts else self.scores(x)
        return scores.argmin(-1) if self.last else scores.argmax(-1)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_choice_that_is_returned_alone_is_judged_by_exact_runs(precision: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 64)
    model = Chosen()
    for ways, verdicts in (({"parts": True}, ("bitwise", "rounding")), ({"last": True}, ("different",))):
        other = Chosen(**ways)
        other.load_state_dict(model.state_dict())
        assert precheck.compare(model, other, x, precision=precision).verdict in verdicts


def test_a_compiler_that_gives_another_format_is_told() -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        return lambda *given: [each.long() for each in graph(*given)]

    def model(x: torch.Tensor) -> torch.Tensor:
        return x + x

    report = precheck.compare(model, torch.compile(model, backend=backend), CODES.int())
    assert report.verdict == "different"
    assert "is of int64, and model's is of int32" in report.errors[0].message


def test_of_one_model_alone_whole_numbers_are_nothing_to_measure() -> None:
    with pytest.raises(precheck.InputError, match="no dense floating-point tensor to compare"):
        precheck.measure(lambda x: x + 1, CODES)
    with pytest.raises(precheck.InputError, match="no dense floating-point tensor to compare"):
        precheck.compare(lambda x: None, lambda x: None, CODES)
