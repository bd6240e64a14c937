"""Scales that ops of torch apply beside a sum, and functions that need them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from casts_by_hand import to_float8
from float8_by_hand import LOW, normal
from frozen import watched
from torch import nn

Sum = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
FUSED: dict[str, Sum] = {
    "addmm": lambda b, x, w, s: torch.addmm(b, x, w.t(), alpha=float(s)),
    "baddbmm": lambda b, x, w, s: torch.baddbmm(b.expand(1, 16, 48), x[None], w.t()[None], alpha=float(s))[0],
    "add": lambda b, x, w, s: torch.add(b, x @ w.t(), alpha=float(s)),
    "sub": lambda b, x, w, s: torch.sub(b, x @ w.t(), alpha=-float(s)),
    "addcmul": lambda b, x, w, s: torch.addcmul(b, x @ w.t(), s),
    "addcdiv": lambda b, x, w, s: torch.addcdiv(b, x @ w.t(), 1 / s),
    "addcmul, in place": lambda b, x, w, s: b.expand(16, 48).clone().addcmul_(x @ w.t(), s),
}
FUNCTIONS = {"silu": nn.functional.silu, "gelu": nn.functional.gelu, "sigmoid": torch.sigmoid, "softmax": lambda y: torch.softmax(y, -1)}


def program(fused: Sum, function: Callable[[torch.Tensor], torch.Tensor], wrong: bool) -> torch.Tensor:
    (x, sx), (w, sw) = to_float8(normal(16, 64), (0, 1)), to_float8(normal(48, 64, seed=1) / 8, (0, 1))
    scale = (sx if wrong else sx * sw).view(())
    return function(fused(normal(48, seed=5), x.float(), w.float(), scale)).to(LOW)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("fused", FUSED.values(), ids=FUSED)
def test_a_scale_may_be_applied_by_a_sum(fused: Sum, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert not watched(lambda wrong: program(fused, function, wrong), False).findings


@pytest.mark.parametrize("fused", ["addcmul", "addcmul, in place"])
def test_a_scale_that_a_sum_forgets_is_found(fused: str) -> None:
    """Inputs and weights have scales for each row, of which those of the inputs alone are multiplied by."""

    def layer(_: bool) -> torch.Tensor:
        (x, sx), (w, _sw) = to_float8(normal(16, 64), 1), to_float8(normal(48, 64, seed=1) / 8, 1)
        return FUSED[fused](normal(48, seed=5), x.float(), w.float(), sx)

    assert watched(layer, True).errors[0].rule == "wrong-scale"


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_function_that_bends_needs_the_scale(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Where it is forgotten, the greatest number of the weight becomes 448. A norm before the function takes any factor out."""

    def layer(norm: bool) -> torch.Tensor:
        y = normal(16, 64) @ to_float8(normal(48, 64, seed=1) / 8, (0, 1))[0].to(LOW).float().t()
        return function(nn.functional.layer_norm(y, (48,)) if norm else y).to(LOW)

    error = watched(lambda _: layer(False), True).errors[0]
    assert error.rule == "wrong-scale"
    assert "a scale is missing here" in error.message
    assert not watched(lambda _: layer(True), False).errors
