"""The largest safe loss scale, predicted from one backward pass, is within one power of two of what trying finds."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import pytest
import torch
from registry import case
from room import LEAST, MOST, predicted, sixteen, tried
from torch import nn
from torch.nn import functional
from towers import (
    STEEP,
    Middle,
    Steep,
    Tower,
    WideInside,
    branching,
    large_between,
    put_together,
    recomputed,
    recomputed_by_reentry,
    steep_in_float32,
)

import precheck

MODELS = ("llama", "vit", "resnet", "moe", "gpt2_lora")
TOKENS = 48  # of a text: trying takes some thirty backward passes


@pytest.mark.parametrize("name", MODELS)
def test_of_a_real_model(name: str) -> None:
    it = case(name)
    tokens = isinstance(it.inputs, dict) and all(value.dtype == torch.long for value in it.inputs.values())
    given = {key: value[:, :TOKENS] if tokens else value for key, value in it.inputs.items()} if isinstance(it.inputs, dict) else {}

    def losses() -> list[torch.Tensor]:
        with torch.random.fork_rng(devices=[]), sixteen():
            torch.manual_seed(0)  # the same dropout
            return [it.loss(it.model(**given) if given else it.model(it.inputs))]

    parameters = [each for each in it.model.parameters() if each.requires_grad]
    assert abs(math.floor(predicted(parameters, losses)) - tried(parameters, losses)) <= 1


def agreed(tower: Tower, losses: Callable[[], list[torch.Tensor]] | None = None) -> float:
    """What is predicted, at a scale where nothing overflows and at one where all does; and trying finds it, too."""
    made = losses or (lambda: [tower.loss()])
    found = predicted(tower.parameters(), made)
    assert abs(math.floor(found) - tried(tower.parameters(), made)) <= 1
    assert predicted(tower.parameters(), made, 2.0**50) == pytest.approx(found)
    return found


PLAIN = (functional.gelu, functional.relu, functional.silu, torch.tanh, branching, steep_in_float32, large_between, WideInside.apply)


@pytest.mark.parametrize("middle", PLAIN, ids=lambda each: each.__qualname__)
def test_of_a_small_net(middle: Middle) -> None:
    assert LEAST < agreed(Tower(middle)) < MOST


def test_a_slope_that_only_the_backward_pass_has_takes_its_room() -> None:
    """The gradient before it is `STEEP` times larger, and the first layer's sum of 32 rows is what it was, times that."""
    assert agreed(Tower(Steep.apply)) == pytest.approx(agreed(Tower(torch.clone)) - math.log2(STEEP), abs=1.5)


def test_gradients_that_are_float32_take_none() -> None:
    """Between 2^40 and 2^-40; beside a plain net only rounding differs: 2^-11 of the largest gradient, so 0.01 of a bit."""
    assert agreed(Tower(steep_in_float32)) == pytest.approx(agreed(Tower(torch.clone)), abs=0.01)
    assert agreed(Tower(WideInside.apply)) == pytest.approx(agreed(Tower(torch.clone)), abs=0.01)


@pytest.mark.parametrize("again", [recomputed, recomputed_by_reentry])
def test_a_forward_pass_computed_again_does_not_count(again: Middle) -> None:
    """Its activations of 2^13 would leave 2^3."""
    assert agreed(Tower(again)) == pytest.approx(agreed(Tower(large_between)))
    assert agreed(Tower(again)) > 10


def test_of_accumulated_gradients() -> None:
    """A quarter of the rows and of the loss at a time: each is a sum of fewer terms, the greatest no larger than that of all."""
    tower = Tower()
    parts = [slice(8 * part, 8 * part + 8) for part in range(4)]
    assert agreed(tower, lambda: [tower.loss(part) / 4 for part in parts]) >= agreed(tower) - 0.01


def test_the_largest_of_several_losses_decides() -> None:
    tower = Tower()
    plain = agreed(tower)
    assert agreed(tower, lambda: [tower.loss(), 128 * tower.loss(), tower.loss() / 128]) == pytest.approx(plain - 7, abs=0.01)


def test_a_loss_in_float16_holds_its_scale_itself() -> None:
    """The gradient of the loss is the scale, and 2^16 is beyond float16."""
    tower = Tower(lambda x: x / 64)

    def half() -> list[torch.Tensor]:
        with sixteen():
            return [tower.last(tower.middle(tower.first(tower.x))).mean()]

    assert half()[0].dtype == torch.float16
    assert agreed(tower, half) == pytest.approx(math.log2(65504))
    assert tried(tower.parameters(), half) == 15


def _cumulative(x: torch.Tensor) -> torch.Tensor:
    return (x * 2.0**-6).cumsum(-1) * 2.0**6


@pytest.mark.parametrize("middle", [_cumulative, put_together])
def test_behind_ops_that_only_move(middle: Middle) -> None:
    assert LEAST < agreed(Tower(middle)) < MOST


def test_where_nothing_is_float16_there_is_no_limit() -> None:
    model, x = nn.Linear(4, 1), torch.ones(2, 4)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.0), torch.amp.GradScaler("cpu")
    with precheck.watch() as report:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert (report.scaler["safe"], report.scaler["tightest"], report.scaler["steps"]) == (None, "", 1)


def test_the_tightest_place_is_named() -> None:
    """The line of the slope itself: what comes after it shrinks again."""
    tower = Tower(lambda x: Steep.apply(x / STEEP))
    optimizer, scaler = torch.optim.SGD(tower.parameters(), lr=0.0), torch.amp.GradScaler("cpu")
    with precheck.watch() as report:
        scaler.scale(tower.loss()).backward()
        scaler.step(optimizer)
        scaler.update()
    lines, first = inspect.getsourcelines(Steep.backward)
    line = next(first + place for place, text in enumerate(lines) if "STEEP" in text)
    assert report.scaler["tightest"].startswith("aten.mul")
    assert report.scaler["tightest"].endswith(f"towers.py:{line}")
