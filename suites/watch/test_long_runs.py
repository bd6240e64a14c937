"""Long runs are judged in parts, and the parts let go: what is kept does not grow, and the verdict is that of the whole run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import precheck
from precheck.observe.shadow.memory import window
from precheck.observe.shadow.operations import Operation, Value

SMALL = 96  # operations in a window: some six turns of the loops below
STEPS = 60
Turns = Callable[[int], Iterator[int]]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def training(steps: int = STEPS) -> Iterator[int]:
    """Steps of a healthy optimizer, as turns for a loop that does something else besides."""
    model = nn.Linear(4, 4).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        model(drawn(4, 4, seed=step).bfloat16()).float().square().mean().backward()
        yield step
        optimizer.step()


def inference(steps: int = STEPS) -> Iterator[int]:
    """Calls of a model, without gradients."""
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)).bfloat16()
    with torch.no_grad():
        for step in range(1, steps + 1):
            model(drawn(4, 4, seed=step).bfloat16())
            yield step


def by_hand(steps: int = STEPS) -> Iterator[int]:
    """Backward passes, and weights that no optimizer holds."""
    weight = drawn(4, 4).bfloat16().requires_grad_()
    for step in range(1, steps + 1):
        (drawn(4, 4, seed=step).bfloat16() @ weight).float().square().mean().backward()
        yield step
        with torch.no_grad():
            weight -= 0.1 * weight.grad
        weight.grad = None


def stagnating_average(turns: Turns) -> None:
    average = torch.ones(64, dtype=torch.bfloat16)
    for _ in turns(STEPS):
        average.mul_(0.999).add_(0.001 * torch.full((64,), 3.0))  # culprit


def running_statistic(turns: Turns) -> None:
    norm = nn.BatchNorm1d(8, momentum=0.0003).bfloat16()
    for step in turns(STEPS):
        norm(3 * drawn(32, 8, seed=step).bfloat16())


def cached_positions(turns: Turns) -> None:
    for step in turns(STEPS):
        if step == 1:
            positions = (torch.arange(2000) + 1000).bfloat16()
        if step == STEPS:
            torch.cos(positions.float())


def cache_that_vanished(turns: Turns) -> None:
    """Flushed to zero in the first turn, and divided by in the last."""
    for step in turns(STEPS):
        if step == 1:
            scale = (drawn(64).abs().half() * 1e-5) * 1e-4
        if step == STEPS:
            1 / scale


def overflowing_state(turns: Turns) -> None:
    """NaN from the third turn on, in a state that each turn goes on with."""
    state = torch.ones(16, dtype=torch.float16)
    for step in turns(STEPS):
        state = (state * (70000.0 if step == 3 else 1.0)) - state * 0.5


def rounding_amplified_late(turns: Turns) -> None:
    """A table rounded in the first turn, which the last one uses up to its digits."""
    for step in turns(STEPS):
        if step == 1:
            table = (100 + drawn(256).abs() * 100).to(torch.bfloat16) * 1.0
        if step == STEPS:
            torch.sin(table.float() * 50)


def recurrent_state(turns: Turns) -> None:
    """Grows by less than half a spacing in each turn: no op is at fault alone."""
    state = 1 + 0.25 * torch.rand(64, generator=torch.Generator().manual_seed(0)).bfloat16()
    for _ in turns(2 * STEPS):
        state = state * 1.0029


def chaotic_state(turns: Turns) -> None:
    """Told as such: float32 does not determine it either, which shows some turns after the fault."""
    state = 0.1 + 0.8 * torch.rand(256, generator=torch.Generator().manual_seed(0)).bfloat16()
    for _ in turns(STEPS):
        state = 3.9 * state * (1 - state)


def cast_without_autograd(turns: Turns) -> None:
    weight = nn.Parameter(drawn(4, 4))
    other = nn.Parameter(drawn(4, 4))
    with torch.no_grad():
        cached = weight.bfloat16()
    for _ in turns(STEPS):
        ((drawn(4, 4).bfloat16() @ cached) @ other.bfloat16()).float().square().mean().backward()


def mask_made_once(turns: Turns) -> None:
    """Healthy: -1e9 is -Inf in float16, and each turn's softmax makes a zero of it."""
    for step in turns(STEPS):
        if step == 1:
            mask = torch.full((8, 8), -1e9).triu(1).half()
        torch.softmax(drawn(8, 8, seed=step).half() + mask, -1)


def kahan(turns: Turns) -> None:
    """Healthy: the remainder holds what the sum does not."""
    total, rest = torch.ones(64, dtype=torch.bfloat16), torch.zeros(64, dtype=torch.bfloat16)
    for step in turns(STEPS):
        term = (drawn(64, seed=step).abs() * 0.01).bfloat16() - rest
        raised = total + term
        rest, total = (raised - total) - term, raised


def every_turn(turns: Turns) -> None:
    for step in turns(STEPS):
        drawn(16, seed=step).half() * 1e6


FAULTY = [
    stagnating_average, running_statistic, cached_positions, cache_that_vanished, overflowing_state, rounding_amplified_late, recurrent_state,
    chaotic_state, every_turn,
]  # fmt: skip
HEALTHY = [mask_made_once, kahan]
CASES = [
    *((program, training) for program in (*FAULTY, *HEALTHY)),
    *((program, turns) for program in (stagnating_average, cached_positions, mask_made_once) for turns in (inference, by_hand)),
    (cast_without_autograd, by_hand),
]


def findings(program: Callable[[Turns], None], turns: Turns) -> list[precheck.Finding]:
    torch.manual_seed(0)
    with precheck.watch() as report:
        program(turns)
    return report.findings


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Windows are small; how many operations each judgement has let go of."""
    counts: list[int] = []
    close = window.Window._close
    monkeypatch.setattr(window, "WINDOW", SMALL)
    monkeypatch.setattr(window.Window, "_close", lambda self, count: counts.append(count) or close(self, count))
    return counts


@pytest.mark.parametrize(("program", "turns"), CASES)
def test_the_findings_are_those_of_the_whole_run(program: Callable[[Turns], None], turns: Turns, closed: list[int]) -> None:
    in_parts = findings(program, turns)
    assert len(closed) >= 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "WINDOW", 1 << 30)
        whole = findings(program, turns)
    assert in_parts == whole
    assert bool(whole) == (program not in HEALTHY)


def kept() -> int:
    """How many operations and values there are."""
    gc.collect()
    return sum(type(each) in (Operation, Value) for each in gc.get_objects())


@pytest.mark.parametrize("turns", [training, inference, by_hand])
def test_what_is_kept_does_not_grow_with_the_run(turns: Turns, closed: list[int]) -> None:
    before, counts = kept(), []
    with precheck.watch():
        average = torch.ones(64, dtype=torch.bfloat16)
        for step in turns(120):
            average.lerp_(drawn(64, seed=step).bfloat16(), 0.1)
            if step in (40, 120):
                counts.append(kept() - before)
    assert counts[1] < counts[0] + 2 * SMALL  # where in a window a step falls differs


@pytest.mark.parametrize("step", [3, 90])
def test_a_fault_of_one_step_is_told_with_its_number(step: int, closed: list[int]) -> None:
    with precheck.watch() as report:
        for at in training(100):
            if at == step:
                drawn(16).half() * 1e6
    assert [(finding.rule, finding.step) for finding in report.errors] == [("overflow", step)], report.summary()


def test_a_block_whose_loop_has_no_turns_is_judged_in_parts_too(monkeypatch: pytest.MonkeyPatch, closed: list[int]) -> None:
    monkeypatch.setattr(window, "LONGEST", 200)
    with precheck.watch() as report:
        value = torch.ones(8, dtype=torch.float16)
        for turn in range(1000):
            value = value * 1.0
            if turn == 3:
                value * 1e6
    assert len(closed) >= 5
    assert [finding.rule for finding in report.errors] == ["overflow"]
    assert "forgotten" not in report.facts


def test_calls_before_one_backward_pass_are_one_turn(closed: list[int]) -> None:
    """The backward pass asks for the lines of all of them."""
    cell = nn.Linear(4, 4).bfloat16()
    with precheck.watch() as report:
        state = torch.ones(1, 4, dtype=torch.bfloat16)
        for _ in range(100):
            state = torch.tanh(cell(state))
        state.float().sum().backward()
    assert len(report.ops) > 0
    assert closed == []
    assert {row.source.partition(":")[0] for row in report.ops if row.phase == "backward"} == {row.source.partition(":")[0] for row in report.ops}


def test_a_judge_that_fails_does_not_end_the_users_run(monkeypatch: pytest.MonkeyPatch, closed: list[int]) -> None:
    def failing(*given: object) -> None:
        raise RuntimeError("no verdict")

    monkeypatch.setattr("precheck.judge.watched_runs.RunJudge.settle", failing)
    with precheck.watch() as report:
        steps = list(training())
    assert steps == list(range(1, STEPS + 1))
    assert report.facts["forgotten"] == f"{sum(closed)} ops were let go unjudged: RuntimeError: no verdict"


def test_tensors_that_the_user_keeps_are_judged_at_the_end(closed: list[int]) -> None:
    """An Inf that nobody has read yet does harm, or none: the mask is read a hundred steps later."""
    with precheck.watch() as report:
        for step in training(100):
            if step == 1:
                mask = torch.full((8, 8), -1e9).triu(1).half()
            if step == 100:
                torch.softmax(drawn(8, 8).half() + mask, -1)
    assert report.findings == [], report.summary()
