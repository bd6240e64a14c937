"""Amplified errors are faults where an end of the run shows them: what the ends are, from how much on they show, and what excuses nothing.

Scenarios in torch; records made by hand where a limit's edge is the point.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graph import Graph, above, below, given
from scenario import finds, passes, watched
from torch import nn

from precheck import formats
from precheck.analysis.propagation import output_impact

U = formats.of_dtype("bfloat16").unit_roundoff
SPOILT = {"drift": 0.9, "dead": 0.9}
FOUND, HEALED = [("amplified-rounding", 1)], []


def accused(graph: Graph) -> list[tuple[str, int]]:
    return [(finding.rule, int(finding.source.rpartition(":")[2])) for finding in graph.found() if finding.severity == "error"]


def through(*later: dict[str, Any], name: str = "exp.default") -> Graph:
    """A logarithm that is off, and what each op that follows makes of it."""
    graph = Graph()
    made = graph.op("log.default", given(), makes=SPOILT)
    for makes in later:
        made = graph.op(name, made, makes=makes)
    return graph


@pytest.mark.parametrize(("nudge", "found"), [(below, HEALED), (above, FOUND)])
def test_an_end_shows_eight_roundings_or_a_hundredth_without_a_digit(nudge: Any, found: list[Any]) -> None:
    assert accused(through({"drift": nudge(output_impact.ROUNDINGS * U)})) == found
    assert accused(through({"drift": U, "dead": nudge(output_impact.DEAD)})) == found


def test_an_end_that_is_not_finite_shows_whatever_the_rest_is() -> None:
    """By hand: of a real Inf its own finding would be told first, and this one only follows from it."""
    graph = through({"drift": 0.0})
    graph.last.outputs[0].nonfinite = 1
    graph.last.inputs[0].nonfinite = 1  # handed on, so that no event opens here
    assert ("amplified-rounding", 1) in accused(graph)


@pytest.mark.parametrize(("nudge", "found"), [(below, HEALED), (above, FOUND)])
def test_a_step_that_is_garbage_is_harm_however_large_its_weight(nudge: Any, found: list[Any]) -> None:
    graph = through({"drift": 0.9, "dead": nudge(output_impact.GARBAGE)})
    step = graph.last.outputs[0]
    graph.op("sub_.Tensor", given(), step, makes={"drift": U / 8, "alive": True}, in_place=True)
    assert accused(graph) == found


NEARLY_ONE = torch.linspace(0.99, 1.01, 64)
"""In bfloat16, the logarithm of a third of these has no digit; the exponential of that is right again."""
CLOSE_TO_ONE = torch.linspace(0.998, 1.002, 64)
"""The same, of four fifths."""
MADE_GOOD = "; no result of this run is wrong because of it"


def made_good() -> torch.Tensor:
    near = NEARLY_ONE.bfloat16()  # fault
    return (near.log() * 3 / 3).exp()


def test_what_is_off_on_the_way_alone_is_made_good() -> None:
    """It is a note that says so. Other data, or other weights than these, might not make it good."""
    finding = finds(made_good, "amplified-rounding", severity="note")
    assert finding.message.endswith(MADE_GOOD)


def read_by_python() -> torch.Tensor:
    near = NEARLY_ONE.bfloat16()  # fault
    log = near.log()
    log[3].item()
    return log.exp()


def made_an_index() -> torch.Tensor:
    near = NEARLY_ONE.bfloat16()  # fault
    log = near.log()
    log.mul(1000).long()
    return log.exp()


def used_to_choose() -> torch.Tensor:
    near = NEARLY_ONE.bfloat16()  # fault
    log = near.log()
    log.argmax()
    return log.exp()


def beside_a_fault() -> torch.Tensor:
    near = NEARLY_ONE.bfloat16()
    phase = torch.linspace(100.0, 101.0, 64).bfloat16()
    part = phase - phase.floor()
    return part + near.log() * 1e-6


def test_what_has_no_part_in_the_error_of_an_end_is_made_good() -> None:
    """The sum is wrong, and its small term is none of the reasons: the sum has no digits for its error."""
    told = {finding.message.partition(" at ")[2].partition(",")[0]: finding.severity for finding in watched(beside_a_fault).findings}
    assert sorted(told.values()) == ["error", "note"], told


class Slope(torch.autograd.Function):
    """A gradient that is written by hand: the logarithm of numbers near one."""

    @staticmethod
    def forward(context: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight.sum()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        near = NEARLY_ONE.bfloat16()
        return near.log() * 0.5


def made_a_gradient() -> None:
    weight = nn.Parameter(torch.full((64,), 0.125).bfloat16())
    optimizer = torch.optim.SGD([weight], lr=0.5)
    Slope.apply(weight).backward()
    optimizer.step()
    optimizer.zero_grad()


@torch.library.custom_op("precheck_scenarios::ones_like", mutates_args=())
def ones_by_another_library(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.float().numpy() * 0 + 1)


def read_by_another_library() -> torch.Tensor:
    near = NEARLY_ONE.bfloat16()  # fault
    log = near.log()
    ones_by_another_library(log)
    return log.exp()


def widened() -> torch.Tensor:
    near = NEARLY_ONE.bfloat16()  # fault
    return near.log().float()


ENDS = [read_by_python, made_an_index, used_to_choose, read_by_another_library, widened]


@pytest.mark.parametrize("program", ENDS, ids=lambda program: program.__name__)
def test_what_an_end_of_the_run_shows_is_a_fault(program: Any) -> None:
    """What Python reads, what becomes an index, what the shadow cannot follow; and a copy of an end is the same end."""
    finds(program, "amplified-rounding")


def test_a_gradient_is_an_end_although_the_optimizer_reads_it() -> None:
    (finding,) = watched(made_a_gradient).errors
    assert (finding.rule, finding.phase) == ("amplified-rounding", "backward")


def compared() -> torch.Tensor:
    near = NEARLY_ONE.bfloat16()  # fault
    log = near.log()
    assert not (log > 5).any()
    return log.exp()


def looked_through() -> torch.Tensor:
    near = NEARLY_ONE.bfloat16()  # fault
    log = near.log()
    assert log.isfinite().all()
    return log.exp()


@pytest.mark.parametrize("program", [compared, looked_through], ids=lambda program: program.__name__)
def test_what_is_only_compared_is_no_end(program: Any) -> None:
    finds(program, "amplified-rounding", severity="note")


def added_to_a_sum_that_is_used_up() -> torch.Tensor:
    near = CLOSE_TO_ONE.bfloat16()  # fault
    total = torch.full((64,), 100.0).add_(near.log() * 0.5)
    return total * 2


def added_to_what_stays() -> torch.Tensor:
    near = CLOSE_TO_ONE.bfloat16()  # fault
    total = torch.full((64,), 100.0).add_(near.log() * 0.5)
    return total.mul_(2)


def test_a_step_that_is_garbage_is_none_of_a_sum_that_the_block_uses_up() -> None:
    """A logarithm of a determinant near 1 that is added to a log-probability; the same into what stays is harm, however long it takes."""
    finds(added_to_a_sum_that_is_used_up, "amplified-rounding", severity="note")
    finds(added_to_what_stays, "amplified-rounding")


def trained() -> nn.Module:
    head = nn.Linear(4, 4).bfloat16()
    head(torch.ones(4, 4).bfloat16()).float().square().mean().backward()
    return head


def dropped() -> nn.Module:
    near = NEARLY_ONE.bfloat16()  # fault
    near.log()
    return trained()


def dropped_without_gradients() -> int:
    near = NEARLY_ONE.bfloat16()  # fault
    near.log()
    return 0


def kept_beside_gradients() -> tuple[nn.Module, torch.Tensor]:
    near = NEARLY_ONE.bfloat16()  # fault
    return trained(), near.log()


def dropped_by_a_hook() -> nn.Module:
    head = nn.Linear(4, 4).bfloat16()
    said = head(torch.ones(4, 4).bfloat16())

    def hook(gradient: torch.Tensor) -> None:
        NEARLY_ONE.bfloat16().log()

    said.register_hook(hook)
    said.float().square().mean().backward()
    return head


def test_what_nobody_takes_is_dropped_in_a_run_that_goes_on_to_gradients() -> None:
    """A loss' part whose weight is 0; without a backward pass in the block it may be what the block is for."""
    finds(dropped, "amplified-rounding", severity="note")
    finds(dropped_without_gradients, "amplified-rounding")
    finds(kept_beside_gradients, "amplified-rounding")
    (finding,) = watched(dropped_by_a_hook).errors
    assert (finding.rule, finding.phase) == ("amplified-rounding", "backward")


SHARES = torch.linspace(0.5, 0.6, 64)


def gap_that_is_small_beside_one() -> torch.Tensor:
    gap = SHARES.bfloat16().square() - (SHARES + 1e-3).bfloat16().square()  # fault
    return gap * 1e-3 + 1


def gap_in_an_exponent() -> torch.Tensor:
    gap = SHARES.bfloat16().square() - (SHARES + 1e-3).bfloat16().square()  # fault
    return (gap * 1e-3).exp()


def test_a_difference_that_is_made_good_is_a_note_unless_it_is_an_exponent() -> None:
    noted = finds(gap_that_is_small_beside_one, "cancellation", severity="note")
    told = finds(gap_in_an_exponent, "cancellation")
    assert noted.message.endswith(MADE_GOOD)
    assert not told.message.endswith(MADE_GOOD)


def softmax_written_out() -> torch.Tensor:
    gap = SHARES.bfloat16().square() - (SHARES + 1e-3).bfloat16().square()
    power = gap.exp()
    return power / power.sum()


def logarithm_of_a_sum() -> torch.Tensor:
    gap = SHARES.bfloat16().square() - (SHARES + 1e-3).bfloat16().square()
    return gap.exp().sum().log()


class NormalisedDescent(torch.optim.Optimizer):
    """Divides each gradient by its size."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data -= 0.1 * weight.grad / weight.grad.norm()


def divided_by_the_optimizer() -> torch.Tensor:
    weight = nn.Parameter(torch.full((64,), 0.1))
    optimizer = NormalisedDescent([weight], {})
    gap = SHARES.bfloat16().square() - (SHARES + 1e-3).bfloat16().square()  # fault
    ((gap * 1e-3).exp() * weight).mean().backward()
    optimizer.step()
    return weight


def test_a_softmax_written_out_is_held_to_what_torchs_own_is() -> None:
    """The logarithm of a sum is one too. An optimizer that divides by the size of what a ratio led to makes no softmax of it."""
    passes(softmax_written_out)
    passes(logarithm_of_a_sum)
    finds(divided_by_the_optimizer, "cancellation")


def made_good_and_subtracted() -> torch.Tensor:
    power = NEARLY_ONE.bfloat16().log().exp()
    gap = power - NEARLY_ONE.bfloat16().square()  # fault
    return gap.exp()


def test_what_is_made_good_excuses_nothing_that_follows() -> None:
    error, note = watched(made_good_and_subtracted).findings
    assert (error.rule, error.severity, error.op) == ("cancellation", "error", "aten.sub.Tensor")
    assert (note.rule, note.severity) == ("amplified-rounding", "note")


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.arange(2000.0))


def buffer_cast() -> nn.Module:
    return Table().bfloat16()


def buffer_cast_and_read() -> torch.Tensor:
    table = Table().bfloat16()  # fault
    return table.positions * 2


def positions_cast() -> torch.Tensor:
    return torch.arange(2000.0).bfloat16()  # fault


def test_a_buffer_that_was_cast_with_its_module_is_no_result() -> None:
    passes(buffer_cast)
    finds(buffer_cast_and_read, "integer-rounding")
    finds(positions_cast, "integer-rounding")


def mean_of_what_is_lost() -> torch.Tensor:
    near = CLOSE_TO_ONE.bfloat16()  # fault
    return near.log().mean() + 100


def sum_of_what_is_lost() -> torch.Tensor:
    near = CLOSE_TO_ONE.bfloat16()  # fault
    return near.log().sum() + 100


def mean_of_what_is_lost_in_part() -> torch.Tensor:
    near = NEARLY_ONE.bfloat16()  # fault
    return near.log().mean() + 100


def mean_of_what_is_made_good() -> torch.Tensor:
    near = CLOSE_TO_ONE.bfloat16()  # fault
    return near.log().exp().mean() + 100


@pytest.mark.parametrize(("program", "severity"), [
    (mean_of_what_is_lost, "error"), (sum_of_what_is_lost, "error"), (mean_of_what_is_lost_in_part, "note"), (mean_of_what_is_made_good, "note"),
])  # fmt: skip
def test_half_a_tensor_without_a_digit_is_harm_where_it_is_averaged(program: Any, severity: str) -> None:
    """An average adds it to others and is right in the end; the inverse of what lost the digits makes them good."""
    finds(program, "amplified-rounding", severity=severity)


WEIGHTS = torch.linspace(0.0031, 0.00325, 64)
"""Near the edge of a narrow density, whose logarithm is there a difference of nearly equal numbers."""


def mixed() -> torch.Tensor:
    squares = WEIGHTS.bfloat16().square()
    narrow = 5.0 - squares / 2e-6  # fault
    return (0.5 * (1.4 - squares / 0.02).exp() + 0.5 * narrow.exp() + 1e-6).log().sum()


def with_a_share_of_zero() -> torch.Tensor:
    """blitz mixes two densities like this, and the share of the narrow one is zero unless the user says otherwise."""
    squares = WEIGHTS.bfloat16().square()
    narrow = 5.0 - squares / 2e-6  # fault
    return (1.0 * (1.4 - squares / 0.02).exp() + 0.0 * narrow.exp() + 1e-6).log().sum()


def test_a_term_with_a_share_of_zero_brings_no_error_with_it() -> None:
    finds(mixed, "cancellation", says="a difference of nearly equal numbers")
    finds(with_a_share_of_zero, "cancellation", severity="note", says=MADE_GOOD)
