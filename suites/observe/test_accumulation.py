"""Additions that leave the bits as they were: followed in place, by rebinding a name, and through out=."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from beside import normal, shadow_now

import precheck
from precheck.observe.shadow.op_notes import Absorbed
from precheck.observe.shadow.probes.accumulation import Accumulation

LOW = torch.bfloat16


def absorbed(program: Callable[[], object]) -> list[Absorbed]:
    with precheck.watch():
        program()
        observation = shadow_now().observation
    return [operation.absorbed for operation in observation.operations if operation.absorbed is not None]


def in_place() -> None:
    total = torch.ones(8, dtype=LOW)
    for _ in range(20):
        total.add_(torch.full((8,), 1e-3, dtype=LOW))


def rebound() -> None:
    total = torch.ones(8, dtype=LOW)
    for _ in range(20):
        total = total + torch.full((8,), 1e-3, dtype=LOW)


def averaged() -> None:
    """1 + 0.001·(2 - 1) rounds to 1, however often."""
    mean = torch.ones(8, dtype=LOW)
    for _ in range(20):
        mean.lerp_(torch.full((8,), 2.0, dtype=LOW), 1e-3)


def by_out() -> None:
    total = torch.ones(8, dtype=LOW)
    for _ in range(20):
        torch.add(total, torch.full((8,), 1e-3, dtype=LOW), out=total)


@pytest.mark.parametrize("program", [in_place, rebound, averaged, by_out], ids=lambda program: program.__name__)
def test_a_sum_that_stands_still(program: Callable[[], object]) -> None:
    """Twenty additions of 1/1000, each a quarter of half a spacing at 1: the sum should be 1.02 and is 1."""
    last = absorbed(program)[-1]
    assert (last.share, last.times, last.additions) == (1.0, 20, 20)
    assert last.arrived == 0.0
    assert last.lost == pytest.approx(1.0)
    assert last.intended == pytest.approx(0.02, rel=0.05)


SUMS = {
    "sum": lambda total, term: total + term,
    "difference": lambda total, term: total - term,
    "reverse": lambda total, term: torch.rsub(total, term),
    "weighted": lambda total, term: torch.add(total, term, alpha=3),
    "number": lambda total, term: total + 0.01,
    "product": lambda total, term: total * (1 + term),
    "blend": lambda total, term: torch.lerp(total, term, 0.01),
}


@pytest.mark.parametrize("size", [1e-3, 1e-2, 0.1, 1.0])
@pytest.mark.parametrize("step", SUMS.values(), ids=SUMS.keys())
def test_the_first_look_leaves_out_only_what_absorbs_nothing(
    step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Terms of all sizes, half of which are zero in some steps: with and without the first look at a sum, the same additions are absorbed."""

    def program() -> None:
        for dtype in (torch.bfloat16, torch.float16):
            total = normal(16, 80).to(dtype)
            for number in range(12):
                total = step(total, (size * normal(16, 80, seed=number) * (torch.arange(80) >= 40 * (number % 2))).to(dtype))

    def figures() -> list[str]:
        return [repr([getattr(each, name) for name in ("share", "times", "additions", "arrived", "intended", "lost", "drift")])
                for each in absorbed(program)]  # fmt: skip

    quick = figures()
    monkeypatch.setattr(Accumulation, "_absorbs", lambda *_: True)
    assert quick == figures()


def test_a_sum_that_moves_absorbs_nothing() -> None:
    def program() -> None:
        total = torch.ones(8, dtype=LOW)
        for _ in range(20):
            total.add_(torch.full((8,), 0.25, dtype=LOW))

    assert absorbed(program) == []


def test_a_sum_that_stops_is_followed_from_there() -> None:
    """Counting by ones in bfloat16 ends at 256."""

    def program() -> None:
        count = torch.zeros(4, dtype=LOW)
        for _ in range(300):
            count += 1

    found = absorbed(program)
    assert found[-1].times == 300 - 256
    assert found[0].times == 1
    assert found[-1].arrived == 0.0


def test_adding_nothing_is_not_absorbing() -> None:
    """Where the run adds zeros the shadow may move by what was lost before; this addition lost nothing."""

    def program() -> None:
        total, drift = torch.ones(8, dtype=LOW), (normal(8) * 1e-3).to(LOW)
        total.add_(torch.zeros(8, dtype=LOW))
        total.add_(drift - drift)

    assert absorbed(program) == []


def test_zero_absorbs_nothing() -> None:
    """Weights that add up to one leave nothing of what was there before. In float32 some of it is left, and another number in each turn."""

    def program() -> None:
        last = torch.ones(16)
        for weight in (1 - 1e-4 * normal(20, 16).to(LOW).abs()).float():
            last = ((1 - weight) * last).to(LOW).float() + weight

    assert absorbed(program) == []


def test_another_write_ends_the_account() -> None:
    def program() -> None:
        total = torch.ones(8, dtype=LOW)
        for _ in range(5):
            total.add_(torch.full((8,), 1e-3, dtype=LOW))
        total.copy_(torch.full((8,), 1.0, dtype=LOW))
        total.add_(torch.full((8,), 1e-3, dtype=LOW))

    assert [each.times for each in absorbed(program)] == [1, 2, 3, 4, 5, 1]


def test_a_buffer_that_results_are_put_into_is_no_accumulator() -> None:
    """out= of a tensor that is not an operand overwrites: nothing is added to what was there."""

    def program() -> None:
        buffer = torch.zeros(8, dtype=LOW)
        for step in range(10):
            torch.add(torch.full((8,), 1.0, dtype=LOW), torch.full((8,), 1e-3 * (step + 1) / 10, dtype=LOW), out=buffer)

    assert all(each.times <= 1 for each in absorbed(program))


def test_what_an_accumulator_is_given_is_the_run_s_not_the_shadow_s() -> None:
    """Its own loss is one rounding a turn, however far off what is added is."""
    held, wrong = torch.full((64,), 1.0, dtype=torch.bfloat16), torch.full((64,), 1e-3, dtype=torch.bfloat16)
    with precheck.watch() as report:
        off = (wrong + 256.0) - 256.0  # zero, and 1e-3 in the reference
        for _ in range(8):
            held.mul_(1.0).add_(off)
    assert not [finding for finding in report.findings if finding.rule == "absorption"]
    with precheck.watch() as report:
        for _ in range(8):
            held.add_(wrong)
    assert [finding.rule for finding in report.errors] == ["absorption"]


def test_adam_s_second_moment_is_right_for_the_gradients_that_it_is_given() -> None:
    """A critic close to its targets, whose gradients are noise in bfloat16."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(10, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)]
    critic = torch.nn.Sequential(*layers).to(LOW)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    exact = {weight: torch.zeros(weight.shape, dtype=torch.float64) for weight in critic.parameters()}
    with precheck.watch() as report:
        for _ in range(6):
            states = torch.randn(64, 10).to(LOW)
            with torch.no_grad():
                targets = critic(states) + torch.randn(64, 1).to(LOW) * 0.001
            (critic(states) - targets).square().mean().backward()
            for weight, moment in exact.items():
                moment.mul_(0.999).addcmul_(weight.grad.double(), weight.grad.double(), value=0.001)
            optimizer.step()
            optimizer.zero_grad()
    moments = [(optimizer.state[weight]["exp_avg_sq"].double(), moment) for weight, moment in exact.items()]
    assert all((own - moment).norm() < 0.02 * moment.norm() for own, moment in moments)
    assert not [finding for finding in report.findings if finding.rule == "absorption"], report.summary()
