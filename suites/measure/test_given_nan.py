"""NaN in what a model is given: the report begins with it, since nothing can be said of what it reaches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import precheck
from precheck.goldens.lifecycle import refresh
from precheck.measurement import job_of

REST = "are NaN, so what they reach is not judged; elsewhere no errors"


def mean(out: torch.Tensor) -> torch.Tensor:
    return out.float().mean()


def inputs(where: tuple[int, ...] | None = (0, 0)) -> torch.Tensor:
    made = torch.linspace(-1, 1, 32).reshape(4, 8)
    if where is not None:
        made[where] = torch.nan
    return made


def model(*, spoiled: bool = False) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))
    if spoiled:
        made[2].bias.data[1] = torch.nan  # type: ignore[union-attr, operator]
    return made


class Fills(nn.Module):
    """Takes missing values for zeros, as it is made to."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.nan_to_num())  # type: ignore[no-any-return]


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "32-true"])
@pytest.mark.parametrize("loss", [None, mean])
def test_of_inputs_it_is_said_first(precision: str, loss: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
    report = precheck.measure(model(), inputs(), loss=loss, precision=precision)
    assert report.summary().startswith(f"1 of 32 elements of inputs {REST}"), report.summary()
    assert report.facts["given_nan"] == {"inputs": "1 of 32"}


def test_of_a_weight_it_is_said_too_and_each_tensor_is_named() -> None:
    report = precheck.measure(model(spoiled=True), {"input": inputs()})
    assert report.summary().startswith(f"1 of 32 elements of inputs[input], 1 of 4 elements of 2.bias {REST}"), report.summary()


@pytest.mark.parametrize("made", [Fills, model])
def test_where_no_result_is_nan_nothing_is_said(made: Callable[[], nn.Module]) -> None:
    """A model that is made for missing values; and one that is given none."""
    report = precheck.measure(made(), inputs() if made is Fills else inputs(None), loss=mean)
    assert report.summary().startswith("no errors under bf16-mixed: ")
    assert "given_nan" not in report.facts


@pytest.mark.parametrize(
    ("made", "given", "said", "cure"),
    [
        (model, inputs(), "the loss is NaN in float32 too, in step 1: what is read here has NaN already", "take the NaN out of inputs first, by"),
        (lambda: model(spoiled=True), inputs(None), "in step 1: what is read here has NaN", "take the NaN out of 2.bias first, by loading"),
        (lambda: nn.Linear(8, 4), inputs() * torch.inf, "in step 1: what is read here has NaN", "take the NaN out of inputs first, by"),
        (model, inputs(None) * 3e38, "and output of module 1 before it", "make the float32 run finite first: look for Inf - Inf"),
    ],
    ids=["inputs", "weight", "one layer", "beyond float32"],
)
def test_the_warning_says_where_it_begins_and_what_to_take_out(made: Callable[[], nn.Module], given: torch.Tensor, said: str, cure: str) -> None:
    report = precheck.measure(made(), given, loss=mean)
    (warning,) = [finding for finding in report.findings if finding.rule == "nan"]
    assert said in warning.message
    assert warning.remedy.startswith(cure)


def test_a_golden_of_nan_is_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(precheck.GoldenError, match="the input in step 1 holds 1 NaN in 32 elements; mend the model or its inputs first"):
        refresh(tmp_path / "golden", job_of(model(), inputs()), "all")


def test_an_error_comes_first_and_then_the_nan() -> None:
    report = precheck.measure(lambda x: x * 1e6 / 1e6, inputs(), precision="16-true")
    first, *others = report.summary().splitlines()
    assert first.startswith("overflow: ")
    assert "1 of 32 elements of inputs are NaN, so what they reach is not judged" in others


@pytest.mark.parametrize(("given", "said"), [(inputs(), f"1 of 32 elements of inputs {REST} under"), (inputs(None), "no errors under 32-true")])
def test_two_models_that_agree_on_nan_have_shown_nothing(given: torch.Tensor, said: str) -> None:
    """It is equal bit for bit, whatever they compute."""
    assert precheck.compare(model(), model(), given).summary().startswith(said)
