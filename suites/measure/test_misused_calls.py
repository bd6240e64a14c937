"""A function of precheck that is called with arguments that it does not take: the TypeError says which is meant."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import precheck

MODEL, DATA = torch.nn.Linear(4, 2), torch.ones(3, 4)
CALLS: dict[str, Callable[[Any], Any]] = {
    "measure() has no argument 'stepz': do you mean steps?": lambda call: call.measure(MODEL, DATA, stepz=2),
    "measure() has no argument 'loss_fn': do you mean loss?": lambda call: call.measure(MODEL, DATA, loss_fn=torch.sum),
    'measure() has no argument \'dtype\': name a precision, as in precision="bf16-mixed"': lambda call: call.measure(MODEL, DATA, dtype=torch.half),
    "compare() has no argument 'atol': you set no tolerance": lambda call: call.compare(MODEL, MODEL, DATA, atol=1e-3),
    "measure() needs inputs too: measure(model, inputs)": lambda call: call.measure(MODEL),
    "several inputs are one tuple: measure(model, (first, second))": lambda call: call.measure(MODEL, DATA, DATA),
    "watch() has no argument 'precison': do you mean precision?": lambda call: call.watch(precison="bf16"),
    "compare() needs inputs too: compare(model, other, inputs)": lambda call: call.compare(MODEL, DATA),
    "monitor() has no argument 'evry': do you mean every?": lambda call: call.monitor(MODEL, evry=10),
    "remedy() has no argument 'budget': it has model, inputs": lambda call: call.remedy(MODEL, DATA, budget=3),
}


@pytest.mark.parametrize("message", CALLS)
def test_the_error_says_what_to_write(message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        CALLS[message](precheck)


def test_what_a_called_function_raises_is_left_alone() -> None:
    def loss(_: Any) -> torch.Tensor:
        raise TypeError("mine")

    with pytest.raises(TypeError, match=r"^mine$"):
        precheck.measure(MODEL, DATA, loss=loss)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11 on")
@pytest.mark.parametrize(
    ("model", "inputs", "told"),
    [
        (nn.Linear(8, 4), torch.ones(2, 8, dtype=torch.float64), "inputs is a tensor of float64, {weights} float32; pass inputs.to(torch.float32)"),
        (nn.Linear(8, 4), {"input": torch.ones(2, 8, dtype=torch.int64)}, "inputs[input] is a tensor of int64, {weights} float32; "),
        (nn.Conv1d(8, 4, 1), torch.ones(1, 8, 4, dtype=torch.float64), "inputs is a tensor of float64, {weights} float32; "),
        (nn.Linear(8, 4).double(), torch.ones(2, 8), "inputs is a tensor of float32, {weights} float64; pass inputs.to(torch.float64)"),
        (nn.Linear(8, 4), torch.ones(2, 9), ""),
        (nn.Sequential(nn.Embedding(4, 8), nn.Linear(9, 4)), torch.ones(2, dtype=torch.int64), ""),
    ],
)
def test_an_input_of_another_dtype_than_the_weights_is_told_beside_torchs_words(model: nn.Module, inputs: Any, told: str) -> None:
    """torch names the format that autocast cast to, which stands nowhere in the user's code."""
    with pytest.raises(RuntimeError) as refused:
        precheck.measure(model, inputs, precision="bf16-mixed")
    notes = [note for note in getattr(refused.value, "__notes__", ()) if "the model's weights are" in note]
    wanted = told.format(weights="and the model's weights are")
    assert [note[: len(wanted)] for note in notes] == [wanted] * bool(told)
