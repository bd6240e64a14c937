"""What is said of quantities under different scales, and of scalers: rule, severity and numbers.

Scenarios in torch; events made by hand where a limit's edge or the words for a number are the point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph import Graph
from scenario import finds, passes
from torch import nn

from precheck.findings import Finding
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.training.step_records import ScalingEvent
from precheck.rules.scaler_order.rule import AHEAD


def judged(*events: ScalingEvent) -> list[Finding]:
    graph = Graph()
    graph.observation.scaling = list(events)
    return graph.found()


def event(kind: str, factor: float = 1024.0, other: float = 1.0, number: int = 1) -> ScalingEvent:
    operation = Operation(number, "step", "scaler", "", f"train.py:{number}", 1)
    return ScalingEvent(kind, operation, factor, other, "")


X = torch.ones(4, 4)


class Training:
    """A layer, its optimizer and a scaler."""

    def __init__(self, scale: float = 1024.0) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale)

    def loss(self) -> torch.Tensor:
        return self.net(X).square().mean()

    def scaled(self) -> torch.Tensor:
        return self.scaler.scale(self.loss())

    def overflow(self) -> None:
        """A backward pass whose gradients are beyond float16 at a scale of 65536."""
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            said = self.net(X * 100)
        self.scaler.scale((said.float() * 10).sum()).backward()

    def step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


def in_order() -> Training:
    made = Training()
    made.scaled().backward()
    made.scaler.unscale_(made.optimizer)
    nn.utils.clip_grad_norm_(made.net.parameters(), 1.0)
    made.step()
    return made


def mixed() -> Training:
    made = Training()
    loss = made.scaled() + made.net(X).abs().mean()  # fault
    loss.backward()
    made.step()
    return made


def clipped() -> Training:
    made = Training()
    made.scaled().backward()
    nn.utils.clip_grad_norm_(made.net.parameters(), 1.0)  # fault
    made.step()
    return made


def applied() -> Training:
    made = Training()
    made.scaled().backward()
    made.optimizer.step()  # fault
    return made


def rescaled() -> torch.Tensor:
    made = Training()
    loss = made.scaled()
    loss.backward()
    made.scaler.step(made.optimizer)
    made.scaler.update(512.0)
    return loss.detach() / made.scaler.get_scale()  # fault


def read() -> Training:
    made = Training()
    loss = made.scaled()
    loss.backward()
    made.step()
    loss.item()  # fault
    return made


def resumed() -> Training:
    saved = torch.optim.SGD(Training().net.parameters(), lr=1e-3, momentum=0.9).state_dict()
    made = Training()
    made.optimizer.load_state_dict(saved)
    made.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # fault
    made.scaled().backward()
    made.step()
    return made


def scheduled() -> Training:
    made = Training(2.0**16)
    schedule = torch.optim.lr_scheduler.LinearLR(made.optimizer, total_iters=8)
    for _ in range(6):
        made.overflow()
        made.step()
        schedule.step()  # fault
    made.optimizer.zero_grad()
    made.scaled().backward()
    made.step()
    return made


KINDS: list[tuple[Callable[[], Any], str, str]] = [
    (mixed, "error", "is still multiplied by a loss scale of 1024 is added to one that is not scaled"),
    (clipped, "error", "is 1024 times too small because of the loss scale is compared with, or clipped by, one"),
    (applied, "error", "gradients still scaled by 1024"), (rescaled, "error", "divided by another scale, 512"),
    (read, "warning", "Python reads a number that is scaled by 1024"), (resumed, "error", "this scaler was not"),
    (scheduled, "error", "went on 3 times"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "severity", "words"), KINDS, ids=[program.__name__ for program, _, _ in KINDS])
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_each_kind_has_its_words(program: Callable[[], Any], severity: str, words: str) -> None:
    assert finds(program, "scaler-order", severity=severity, says=words).phase == "scaler"


def test_a_loop_in_order_has_no_findings() -> None:
    passes(in_order, wide=True)


def in_float16() -> None:
    made = Training()
    made.net.half()
    made.scaler.scale(made.net(X.half()).float().square().mean()).backward()
    made.scaler.step(made.optimizer)  # fault


def unscaled_twice() -> None:
    made = Training()
    made.scaled().backward()
    made.scaler.unscale_(made.optimizer)
    made.scaler.unscale_(made.optimizer)  # fault


def test_what_the_scaler_refuses_is_told_although_it_raises() -> None:
    finding = finds(in_float16, "scaler-order", raises=ValueError, says="2 parameters are float16")
    assert (finding.measured, finding.limit) == (2.0, 1.0)
    finds(unscaled_twice, "scaler-order", raises=RuntimeError, says="raised (unscale_() has already been called")


def collapsed() -> Training:
    made = Training(1.0)
    for _ in range(2):
        made.optimizer.zero_grad()
        (made.scaled() * float("inf")).backward()
        made.scaler.step(made.optimizer)  # fault
        made.scaler.update()
    return made


def test_a_scale_below_one_is_a_collapse() -> None:
    finding = finds(collapsed, "scaler-collapse", says="the loss scale fell to 0.5")
    assert (finding.measured, finding.limit) == (0.5, 1.0)


@pytest.mark.parametrize(("factor", "told"), [
    (1 / 1024, "is 1024 times too small because of the loss scale"), (0.25, "is 4 times too small because of the loss scale"),
    (3.0, "is still multiplied by a loss scale of 3"),
])
def test_factors_are_told_as_people_say_them(factor: float, told: str) -> None:
    (finding,) = judged(event("compared", factor))
    assert f"a number that {told} is compared" in finding.message


@pytest.mark.parametrize("times", range(1, 6))
def test_a_schedule_may_go_on_through_a_skip_or_two(times: int) -> None:
    found = judged(*(event("scheduled", float(each)) for each in range(1, times + 1)))
    assert len(found) == (times >= AHEAD)


def test_a_line_is_accused_once_and_lines_in_their_order() -> None:
    found = judged(event("compared", number=7), event("mixed", number=3), event("compared", number=7))
    assert [finding.source for finding in found] == ["train.py:3", "train.py:7"]
