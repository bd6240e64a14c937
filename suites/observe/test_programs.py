"""Which ops a run consists of, by `programs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn

from precheck.measurement import Measurement, job_of
from precheck.observe.decisions.op_sequence import Program, alike
from precheck.observe.recording.module_hooks import LOW, Position
from precheck.precisions import resolve


def steps(*taken: tuple[str, tuple[object, ...]], inside: bool = True) -> Counter[tuple[object, ...]]:
    position = Position()
    position.inside = inside
    program = Program(position)
    for name, args in taken:
        program.took(name, args, {}, backward=False)
    return program.steps


def test_numbers_tell_two_programs_apart_and_tensors_do_not() -> None:
    x, y = torch.ones(2), torch.zeros(3)
    assert alike(steps(("aten.mul", (x, 2.0))), steps(("aten.mul", (y, 2.0))))
    assert not alike(steps(("aten.mul", (x, 2.0))), steps(("aten.mul", (x, 2.5))))
    assert not alike(steps(("aten.sum", (x, [0, 1]))), steps(("aten.sum", (x, [0]))))
    assert not alike(steps(("aten.add", (x, x))), steps(("aten.add", (x, x)), ("aten.add", (x, x))))


def test_casts_are_no_steps_nor_is_what_happens_around_the_model() -> None:
    assert not steps(("aten._to_copy", (torch.ones(2),)), ("aten.detach", (torch.ones(2),)))
    assert not steps(("aten.clone", (torch.ones(2),)), inside=False)


@pytest.mark.parametrize("field", ["min", "max", "eps", "tiny"])
def test_what_a_format_is_asked_for_is_another_number_in_each(field: str) -> None:
    low, wide = (getattr(torch.finfo(dtype), field) for dtype in (torch.bfloat16, torch.float32))
    assert alike(steps(("aten.masked_fill", (low,))), steps(("aten.masked_fill", (wide,))))
    assert not alike(steps(("aten.masked_fill", (low,))), steps(("aten.masked_fill", (-low,))))


class Branches(nn.Module):
    """Goes another way under autocast, by a number or by an op."""

    def __init__(self, way: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.way, self.first, self.second = way, nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.way(self.first(x)))


def gelu(h: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(h)


def other_kernel(h: torch.Tensor) -> torch.Tensor:
    """A fast path for low formats that is another function: x sigmoid(1.702 x) is no GELU."""
    return h * torch.sigmoid(1.5 * h) if h.dtype in LOW else gelu(h)


def other_number(h: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(h, (32,), eps=1e-1 if h.dtype in LOW else 1e-5)


@pytest.mark.parametrize(("way", "same"), [(gelu, True), (other_kernel, False), (other_number, False)])
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_a_program_that_goes_another_way_is_held_against_a_run_of_its_own(
    way: Callable[[torch.Tensor], torch.Tensor], same: bool, precision: str
) -> None:
    torch.manual_seed(0)
    job = job_of(Branches(way), torch.randn(64, 32), loss=lambda out: out.float().square().mean(), optimizer=torch.optim.AdamW)
    measured = Measurement(job, resolve(precision), depth="ops")
    assert measured.seen.reference is not None
    report = measured.report()
    assert measured.borrowed is same
    assert (report.errors == []) is same, report.summary()
