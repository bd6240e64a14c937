"""Steps that are not simply steps: skipped, sparse, without gradient, by closures, by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from twin import BF16, ENOUGH, START, TOO_LITTLE, lost, moved, told, watched, weight

import precheck

RATES = pytest.mark.parametrize("rate", [ENOUGH, TOO_LITTLE], ids=["enough", "too-little"])


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("steps", [1, 5])
def test_a_skipped_step_is_not_lost(fused: bool, steps: int) -> None:
    """The first loss is infinite; a fused optimizer's step runs all the same, hooks too, and its kernel does nothing."""
    own = weight()
    optimizer, scaler = torch.optim.AdamW([own], lr=ENOUGH, fused=fused), torch.amp.GradScaler("cpu", init_scale=4.0)

    def code() -> None:
        for step in range(steps):
            optimizer.zero_grad()
            scaler.scale((own.float() * (torch.inf if step == 0 else 1.0)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

    report = watched(code)
    assert moved(own) == (steps > 1)
    assert not lost(report), report.summary()


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_after_a_skipped_one_can_be_lost(fused: bool) -> None:
    own = weight()
    optimizer, scaler = torch.optim.AdamW([own], lr=TOO_LITTLE, fused=fused), torch.amp.GradScaler("cpu", init_scale=4.0)

    def code() -> None:
        for step in range(5):
            optimizer.zero_grad()
            scaler.scale((own.float() * (torch.inf if step == 0 else 1.0)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

    report = watched(code)
    assert not moved(own)
    assert lost(report)


@pytest.mark.parametrize("fused", [True, False])
def test_what_comes_after_a_skipped_step_is_still_judged(fused: bool) -> None:
    """float32 weights under float16 autocast, as it is mostly done: one skipped step, and then a product that overflows."""
    own = nn.Linear(8, 8)
    optimizer, scaler = torch.optim.AdamW(own.parameters(), lr=1e-3, fused=fused), torch.amp.GradScaler("cpu", init_scale=4.0)

    def code() -> None:
        for step in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                out = own(torch.ones(4, 8))
            scaler.scale((out.float() * (torch.inf if step == 0 else 1.0)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        with torch.autocast("cpu", torch.float16):
            own(torch.full((4, 8), 6e4)) * 6e4

    assert "overflow" in {finding.rule for finding in watched(code).errors}


@RATES
def test_a_group_that_joins_later(rate: float) -> None:
    first, second = weight(), weight()
    optimizer = torch.optim.SGD([first], lr=ENOUGH)

    def code() -> None:
        for step in range(6):
            if step == 2:
                optimizer.add_param_group({"params": [second], "lr": rate})
            optimizer.zero_grad()
            (first.sum() + second.sum()).backward()
            optimizer.step()

    report = watched(code)
    assert bool(lost(report)) == (not moved(second)), report.summary()
    assert all("of 4 steps" in finding.message for finding in lost(report))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.SparseAdam, torch.optim.Adagrad])
@RATES
def test_sparse_gradients(kind: Any, rate: float) -> None:
    table = nn.Embedding(32, 8, sparse=True).to(BF16)
    nn.init.constant_(table.weight, START)
    optimizer = kind(table.parameters(), lr=rate)

    def code() -> None:
        for _ in range(4):
            optimizer.zero_grad()
            table(torch.tensor([1, 2, 3, 3])).sum().backward()
            optimizer.step()

    report = watched(code)
    assert bool(lost(report)) == (not moved(table.weight)), report.summary()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_what_has_no_gradient_has_no_update(kind: Any) -> None:
    used, unused = weight(), weight()
    optimizer = kind([used, unused], lr=ENOUGH)

    def code() -> None:
        for _ in range(4):
            optimizer.zero_grad()
            used.sum().backward()
            optimizer.step()

    report = watched(code)
    assert moved(used)
    assert not moved(unused)
    assert not told(report), report.summary()


def test_decay_alone_is_nothing_that_a_weight_is_trained_by() -> None:
    """AdamW's decay of 1e-4 a step, on weights whose gradient is zero: an expert to which no token goes."""
    own = weight()
    optimizer = torch.optim.AdamW([own], lr=1e-3, weight_decay=0.1)

    def code() -> None:
        for _ in range(6):
            own.grad = torch.zeros_like(own)
            optimizer.step()

    report = watched(code)
    assert not moved(own)
    assert not told(report), report.summary()


@pytest.mark.parametrize(("steps", "rate", "found"), [(100, 1e-3, True), (40, 1e-3, False), (100, 1e-4, False), (12, 0.1, False)])
def test_decay_that_the_format_could_have_shown_and_did_not(steps: int, rate: float, found: bool) -> None:
    """1e-4 a step comes to two unit roundoffs after 78 steps; 1e-2 a step arrives."""
    own = weight()
    optimizer = torch.optim.AdamW([own], lr=rate, weight_decay=0.1)

    def code() -> None:
        for _ in range(steps):
            own.grad = torch.zeros_like(own)
            optimizer.step()

    report = watched(code)
    assert [finding.rule for finding in told(report)] == ["lost-update"] * found, report.summary()
    assert all("0% of its weight decay arrived." in finding.message and "smaller in 100 steps" in finding.message for finding in told(report))


ASKED = {"weight_decay": 0.1}


class Stochastic(torch.optim.Optimizer):
    """Steps by the gradient's sign, rounded by chance. Decay is a product of its own, in the weight's format, or a part of the step."""

    def __init__(self, parameters: Any, weight_decay: float = 0.01, *, apart: bool) -> None:
        super().__init__(parameters, {"weight_decay": weight_decay})
        self.apart = apart

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                kept = 1 - 1e-3 * group["weight_decay"]
                wide = each.mul_(kept).float() if self.apart else kept * each.float()
                bits = (wide - 1e-3 * each.grad.float().sign()).view(torch.int32) + torch.randint(0, 1 << 16, each.shape, dtype=torch.int32)
                each.copy_((bits & -65536).view(torch.float32))


@pytest.mark.parametrize(
    ("apart", "decay", "steps", "found"),
    [(True, ASKED, 100, True), (False, ASKED, 100, False), (True, {}, 1000, False), (True, ASKED, 40, False)],
)
def test_decay_beside_steps_that_arrive(apart: bool, decay: dict[str, float], steps: int, found: bool) -> None:
    """Nothing is said of so few steps that no format could show it, nor of decay that is there unasked."""
    own = weight()
    optimizer = Stochastic([own], apart=apart, **decay)

    def code() -> None:
        for _ in range(steps):
            own.grad = torch.ones_like(own)
            optimizer.step()

    report = watched(code)
    assert moved(own)
    assert [finding.rule for finding in told(report)] == ["lost-update"] * found, report.summary()
    assert all("100 products with a number close to 1" in finding.message for finding in told(report))


@pytest.mark.parametrize("apart", [False, True])
def test_a_moving_average_is_told_from_decay(apart: bool) -> None:
    """Its cure is another: master weights of the model leave a copy of it low."""
    own, other = weight(), weight()

    def averaged() -> None:
        with torch.no_grad():
            for _ in range(20):
                own.mul_(1 - 1e-3)
                own.add_(1e-3 * other) if apart else own.add_(other, alpha=1e-3)

    (finding,) = told(watched(averaged))
    assert finding.rule == "lost-update"
    assert "20 updates of a moving average should have replaced 2% of it" in finding.message
    assert "keep the average in float32" in finding.remedy


def test_decay_of_a_copy_in_float32_arrives() -> None:
    own = weight()
    master = nn.Parameter(own.detach().float())
    optimizer = torch.optim.AdamW([master], lr=1e-3, weight_decay=0.1)

    def code() -> None:
        for _ in range(100):
            master.grad = torch.zeros_like(master)
            optimizer.step()
            with torch.no_grad():
                own.copy_(master)

    report = watched(code)
    assert moved(own)
    assert not told(report), report.summary()


@pytest.mark.parametrize("steps", [1, 3])
def test_a_hand_written_step_that_clears_its_gradient_had_one(steps: int) -> None:
    own = weight()

    def code() -> None:
        for _ in range(steps):
            (own.float() * 0.5).sum().backward()
            with torch.no_grad():
                own.sub_(1e-6 * own.grad)
                own.grad.zero_()

    report = watched(code)
    assert not moved(own)
    assert lost(report), report.summary()


def test_complex_weights_that_bf16_passes_by() -> None:
    own = nn.Parameter(torch.ones(16, dtype=torch.complex64))
    optimizer = torch.optim.AdamW([own], lr=1e-5)

    def code() -> None:
        for _ in range(4):
            optimizer.zero_grad()
            (own * torch.linspace(1, 2, 16).to(BF16)).abs().to(BF16).sum().backward()
            optimizer.step()

    report = watched(code)
    assert bool((own.detach() != 1).all())
    assert not told(report), report.summary()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@RATES
def test_weights_too_many_to_be_looked_at_whole(kind: Any, rate: float) -> None:
    own = weight(70_000)
    optimizer = kind([own], lr=rate)

    def code() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            own.sum().backward()
            optimizer.step()

    report = watched(code)
    assert bool(lost(report)) == (not moved(own)), report.summary()
    assert 10_000 < report.updates[0]["sampled"] < 70_000


# --- closures ------------------------------------------------------------------------------------------------------------


def lbfgs(own: nn.Parameter, rate: float, calls: int = 3, **options: Any) -> Callable[[], None]:
    """Towards 0.5, which bf16 holds."""
    optimizer = torch.optim.LBFGS([own], lr=rate, **options)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (own.float() - 0.5).square().sum()
        loss.backward()
        return loss

    def code() -> None:
        for _ in range(calls):
            optimizer.step(closure)

    return code


def test_a_closure_that_arrives() -> None:
    own = weight()
    report = watched(lbfgs(own, 0.3))
    assert own[0].item() == pytest.approx(0.5, abs=2.0**-8)  # a spacing
    assert not told(report), report.summary()


def test_a_closure_with_a_line_search_that_arrives() -> None:
    own = weight()
    report = watched(lbfgs(own, 1.0, line_search_fn="strong_wolfe"))
    assert own[0].item() == 0.5
    assert not told(report), report.summary()


@pytest.mark.parametrize("calls", [1, 3, 10])
def test_a_closure_whose_steps_are_lost(calls: int) -> None:
    own = weight()
    report = watched(lbfgs(own, TOO_LITTLE, calls))
    assert not moved(own)
    assert lost(report), report.summary()


def test_a_block_that_raises_in_its_step_still_tells() -> None:
    own = weight()
    optimizer = torch.optim.SGD([own], lr=TOO_LITTLE)
    reports = []
    with contextlib.suppress(KeyboardInterrupt), precheck.watch() as report:
        reports.append(report)
        for step in range(3):
            own.grad = torch.ones_like(own)
            optimizer.step()
            if step == 2:
                raise KeyboardInterrupt
    assert lost(reports[0]), reports[0].summary()
