"""Choices made by chance, and gradients that never came.

Scenarios in torch; records made by hand where a limit's edge is the point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph import Graph, below, given
from scenario import finds, passes
from torch import nn

from precheck import formats
from precheck.analysis.decisions import choices
from precheck.observe.shadow.op_notes import Flips
from precheck.rules.decision_flip.rule import TIED_ROWS

U = formats.of_dtype("bfloat16").unit_roundoff
LEAST = int(choices.CHANGED_ROWS)
ROWS = int(LEAST / TIED_ROWS)  # of which `LEAST` are just the share that counts
TIED = Flips(LEAST, ROWS, LEAST)
BLURRED = Flips(LEAST, int(LEAST / choices.BLURRED), 0, choices.BLUR * U)


def judged(flips: Flips, name: str = "topk.default", scores: Any = None, **facts: Any) -> list[tuple[str, str]]:
    graph = Graph()
    graph.op(name, scores or given(), flips=flips, **facts)
    return [(finding.rule, finding.severity) for finding in graph.found()]


SCORES = 1 + 1e-3 * torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
"""Distinct numbers, of which bfloat16 makes three or four."""


def best() -> torch.Tensor:
    scores = SCORES.bfloat16()
    return scores.topk(1).indices  # fault


def best_in_float32() -> torch.Tensor:
    return SCORES.topk(1).indices


def test_distinct_scores_that_the_format_makes_equal_are_an_error() -> None:
    finds(best, "decision-flip", says="98% because bfloat16 makes distinct scores equal")
    passes(best_in_float32, wide=True)


@pytest.mark.parametrize("flips", [
    Flips(LEAST - 1, 8, LEAST - 1),
    Flips(LEAST, 8, LEAST - 1),
    Flips(LEAST, ROWS + 1, LEAST),
], ids=["rows", "ties", "share"])  # fmt: skip
def test_fewer_ties_than_each_limit_are_let_be(flips: Flips) -> None:
    assert judged(flips) == []


def test_ties_of_a_wide_format_are_its_own() -> None:
    """By hand, so that nothing low is behind them: `best_in_float32` has no ties."""
    assert judged(TIED, scores=given("float32", roundoff=U)) == []


def chosen_by_a_hook() -> nn.Parameter:
    weight = nn.Parameter(torch.ones(64).bfloat16())
    product = weight * SCORES.bfloat16()
    product.register_hook(lambda gradient: SCORES.bfloat16().topk(1).values + 0 * gradient)
    product.float().sum().backward()
    return weight


def test_a_backward_pass_chooses_nothing() -> None:
    passes(chosen_by_a_hook)


def likeliest() -> torch.Tensor:
    scores = SCORES.bfloat16()  # fault
    return scores.argmax(-1)


def largest() -> Any:
    scores = SCORES.bfloat16()  # fault
    return scores.max(-1)


def largest_of_a_weight() -> torch.Tensor:
    table = nn.Parameter(SCORES.clone())
    scores = table.bfloat16()  # fault
    return scores.argmax(-1)


def places() -> torch.Tensor:
    edges = (1 + torch.linspace(-3e-3, 3e-3, 100)).bfloat16()
    return torch.searchsorted(edges, SCORES.bfloat16())


@pytest.mark.parametrize(("program", "severity"), [(likeliest, "warning"), (largest, "warning"), (largest_of_a_weight, "error")])
def test_rounding_that_hides_what_tells_scores_apart_is_blamed_on_its_cast(program: Callable[[], Any], severity: str) -> None:
    """A warning, but for the cast of a weight, which can be left out."""
    finding = finds(program, "decision-flip", severity=severity, says="the rounding here decides aten.")
    assert finding.measured is not None
    assert finding.measured > (finding.limit or 0.0) == choices.BLUR


def test_a_place_is_no_choice_by_difference() -> None:
    passes(places)


@pytest.mark.parametrize("flips", [
    Flips(LEAST - 1, 8, 0, 1.0),
    Flips(LEAST, BLURRED.total + 1, 0, 1.0),
    Flips(LEAST, BLURRED.total, 0, below(choices.BLUR * U)),
], ids=["rows", "share", "blur"])  # fmt: skip
def test_less_blur_than_each_limit_is_let_be(flips: Flips) -> None:
    assert judged(flips) == []


def chosen_by_infinities() -> torch.Tensor:
    powers = (12 + 1e-3 * SCORES.half()).exp()  # fault
    return powers.topk(1).indices


def test_scores_that_infinity_spoilt_are_not_judged_again() -> None:
    finds(chosen_by_infinities, "overflow")


@pytest.mark.parametrize(("swapped", "severity"), [(1.0, "error"), (1 / 8, "error"), (1 / 9, "note"), (0.02, "note")])
def test_of_many_that_a_row_chooses_the_last_may_be_any_of_its_equals(swapped: float, severity: str) -> None:
    assert judged(Flips(10, 100, 10, swapped=swapped)) == [("decision-flip", severity)]


def equal_to_the_best() -> torch.Tensor:
    scores = SCORES.bfloat16()
    return torch.where(scores == scores.amax(-1, keepdim=True), 1.0, 0.0).mean(0)  # fault


def not_below_the_second() -> torch.Tensor:
    scores = SCORES.bfloat16()
    second = scores.sort(-1).values[:, -2:-1].clone()
    return torch.where(scores >= second, 1.0, 0.0).mean(0)  # fault


def equal_before_they_were_rounded() -> torch.Tensor:
    scores = SCORES.round(decimals=2).bfloat16()
    return torch.where(scores == scores.amax(-1, keepdim=True), 1.0, 0.0).mean(0)


def beyond_the_last_chance() -> torch.Tensor:
    """In half all but a few of a row's probabilities are zero, and so is the fortieth: those beyond it have no weight."""
    chances = (60 * (SCORES - 1) / 1e-3).softmax(-1).half()
    return torch.where(chances < chances.sort(-1).values[:, 24:25].clone(), 0.0, chances).sum(-1)


def among_masked_scores() -> torch.Tensor:
    """The mask leaves two scores in each row, and rounding loses all others beside it. So the third choice is a masked one."""
    scores = SCORES.half() + torch.zeros(256, 64).index_fill_(1, torch.arange(2, 64), -10_000.0).half()
    return torch.where(scores < scores.sort(-1).values[:, -3:-2].clone(), 0.0, 1.0).sum(-1)


def above_the_end_of_a_choice() -> tuple[torch.Tensor, torch.Tensor]:
    scores = SCORES.bfloat16()
    least, place = scores.topk(1)  # fault
    return torch.where(scores < least.clone(), 0.0, 1.0).mean(0), place


def above_the_value_of_a_choice() -> torch.Tensor:
    scores = SCORES.bfloat16()
    least = scores.topk(1).values.clone()
    return torch.where(scores < least, 0.0, 1.0).mean(0)  # fault


def test_a_choice_among_equals_is_told_once() -> None:
    finds(above_the_end_of_a_choice, "decision-flip", says="because bfloat16 makes distinct scores equal")


@pytest.mark.parametrize("program", [equal_to_the_best, not_below_the_second, above_the_value_of_a_choice])
def test_more_than_was_asked_for_equal_a_bound_from_among_the_scores(program: Callable[[], Any]) -> None:
    finds(program, "decision-flip", says="because bfloat16 makes distinct scores equal")


@pytest.mark.parametrize("program", [equal_before_they_were_rounded, beyond_the_last_chance, among_masked_scores])
def test_what_equals_a_bound_rightly_or_without_a_meaning_is_let_be(program: Callable[[], Any]) -> None:
    passes(program)


ONES = torch.ones(4, 4)


class Modules(nn.Module):
    """A layer whose weight is copied, and one that is trained in any case."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)  # by chance the four terms of a product cancel, which is found
        self.head, self.body = nn.Linear(4, 4), nn.Linear(4, 4)


def copied_without_autograd() -> nn.Module:
    made = Modules()
    with torch.no_grad():
        copy = made.head.weight.bfloat16()  # fault
    (made.body(ONES).bfloat16() @ copy).float().sum().backward()
    return made


def test_a_copy_made_without_autograd_and_used_with_it_leaves_its_parameter_without_a_gradient() -> None:
    finds(copied_without_autograd, "missing-gradient", says="was made without autograd, and is used where gradients are needed")


def used_without_autograd() -> nn.Module:
    made = Modules()
    with torch.no_grad():
        copy = made.head.weight.bfloat16()
        copy @ copy
    made.body(ONES).sum().backward()
    return made


def used_beside_its_parameter() -> nn.Module:
    made = Modules()
    with torch.no_grad():
        copy = made.head.weight.bfloat16()
    (made.body(made.head(ONES)).bfloat16() @ copy).float().sum().backward()
    return made


def used_in_a_run_without_gradients() -> torch.Tensor:
    made = Modules()
    with torch.no_grad():
        copy = made.head.weight.bfloat16()
    return (made.body(ONES).bfloat16() @ copy).float().sum()


def copied_from_a_tensor() -> nn.Module:
    made = Modules()
    with torch.no_grad():
        copy = ONES.bfloat16()
    (made.body(ONES).bfloat16() @ copy).float().sum().backward()
    return made


def used_by_a_hook() -> nn.Module:
    made = Modules()
    said = made.body(ONES).bfloat16()
    with torch.no_grad():
        copy = made.head.weight.bfloat16()
    said.register_hook(lambda gradient: gradient @ copy)
    said.float().sum().backward()
    return made


def converted() -> nn.Module:
    made = Modules()
    made.head.bfloat16()
    made.head(made.body(ONES).bfloat16().detach())
    made.body(ONES).sum().backward()
    return made


def frozen() -> nn.Module:
    made = Modules()
    made.head.requires_grad_(False)
    with torch.no_grad():
        copy = made.head.weight.bfloat16()
    (made.body(ONES).bfloat16() @ copy).float().sum().backward()
    return made


NONE_MISSED = [
    used_without_autograd, used_beside_its_parameter, used_in_a_run_without_gradients, copied_from_a_tensor, used_by_a_hook, converted, frozen,
]  # fmt: skip


@pytest.mark.parametrize("program", NONE_MISSED, ids=lambda program: program.__name__)
def test_no_gradient_is_missed_where_none_is_wanted_or_it_came(program: Callable[[], Any]) -> None:
    passes(program)
