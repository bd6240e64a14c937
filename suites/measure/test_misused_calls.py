"""A function of precheck that is called with arguments that it does not take: the TypeError says which is meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

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
