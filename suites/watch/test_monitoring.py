"""`precheck.monitor` looks at some steps of a long loop, and leaves the others alone."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import precheck
from precheck import Monitor
from precheck.monitoring import told_by


class Loop:
    """Training in bfloat16 at a rate that decays: updates arrive at first, and are too small for the format from some step on."""

    def __init__(self, *, wide: bool = False) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 1))
        self.model.to(torch.float32 if wide else torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.rate = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.97**step)
        self.generator = torch.Generator().manual_seed(0)

    def step(self) -> None:
        batch = torch.randn(8, 16, generator=self.generator).to(self.model[0].weight.dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = self.model(batch)
        (output.float() - 1).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.rate.step()

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def monitored(loop: Loop, iterations: int, **options: Any) -> tuple[Monitor, list[str]]:
    told: list[str] = []
    with precheck.monitor(loop.model, tell=told.append, **options) as monitor:
        for _ in range(iterations):
            loop.step()
            monitor.step()
    return monitor, told


def test_an_update_that_is_lost_late_is_found_and_told_once() -> None:
    monitor, told = monitored(Loop(), 205, every=100, steps=5)
    (error,) = monitor.report.errors
    assert error.rule == "lost-update"
    assert 101 <= error.step <= 105
    assert [(look.first, look.last) for look in monitor.looks] == [(1, 5), (101, 105), (201, 205)]
    assert [look.errors for look in monitor.looks] == [(), ("lost-update",), ("lost-update",)]
    assert monitor.looks[0].arrived is not None
    assert monitor.looks[0].arrived > 0.5
    assert monitor.looks[1].arrived == pytest.approx(0.0, abs=0.05)
    (text,) = told
    assert text.startswith("precheck, steps 101 to 105: lost-update: ")
    assert "bfloat16 drops changes smaller than" in text


def test_wide_weights_lose_nothing_at_any_rate() -> None:
    monitor, told = monitored(Loop(wide=True), 105, every=100)
    assert monitor.report.errors == []
    assert told == []
    assert len(monitor.looks) == 2
    assert [look.arrived for look in monitor.looks] == [None, None]
    assert all(look.loss is not None and look.loss < 0.1 for look in monitor.looks)


def test_training_computes_the_same_bits() -> None:
    plain, watched = Loop(), Loop()
    for _ in range(25):
        plain.step()
    monitored(watched, 25, every=10, steps=3)
    assert all(torch.equal(one, other) for one, other in zip(plain.weights(), watched.weights(), strict=True))


def test_no_mode_is_active_between_looks_and_afterwards() -> None:
    loop, active = Loop(), []
    with precheck.monitor(every=4, steps=2) as monitor:
        for _ in range(8):
            loop.step()
            active.append(len(_get_current_dispatch_mode_stack()))
            monitor.step()
    assert active == [1, 1, 0, 0, 1, 1, 0, 0]
    assert _get_current_dispatch_mode_stack() == []
    assert [(look.first, look.last) for look in monitor.looks] == [(1, 2), (5, 6)]


def test_a_loop_that_ends_within_a_look_is_judged_as_far_as_it_went() -> None:
    monitor, _ = monitored(Loop(), 2, every=10, steps=5)
    assert [(look.first, look.last) for look in monitor.looks] == [(1, 2)]


def test_an_exception_ends_the_look_and_goes_through() -> None:
    def cut_short(monitor: Monitor) -> None:
        with monitor:
            Loop().step()
            raise RuntimeError("no more data")

    monitor = precheck.monitor()
    with pytest.raises(RuntimeError, match="no more data"):
        cut_short(monitor)
    assert _get_current_dispatch_mode_stack() == []
    assert len(monitor.looks) == 1


def test_a_look_goes_on_while_a_mode_of_the_program_is_active() -> None:
    class Mine(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    loop = Loop()
    with precheck.monitor(every=10, steps=1) as monitor:
        with Mine():
            loop.step()
            monitor.step()
            assert len(_get_current_dispatch_mode_stack()) == 2
        loop.step()
        monitor.step()
        assert _get_current_dispatch_mode_stack() == []
    assert [(look.first, look.last) for look in monitor.looks] == [(1, 2)]


def test_without_tell_a_logger_is_told(caplog: pytest.LogCaptureFixture) -> None:
    weight = torch.ones(64, dtype=torch.bfloat16)
    with caplog.at_level(logging.WARNING, logger="precheck"), precheck.monitor(steps=1) as monitor:
        for _ in range(40):
            weight -= 1e-3
        monitor.step()
    assert [error.rule for error in monitor.report.errors] == ["absorption"]
    assert "precheck, step 1: absorption" in caplog.text


def test_the_first_rank_on_which_a_fault_was_found_tells_of_it() -> None:
    lost = precheck.Finding("lost-update", "error", "0% of the update arrived")
    assert told_by(lost, 0)
    assert told_by(lost, 5)  # of a rank that watches alone
    assert [told_by(dataclasses.replace(lost, ranks=(1, 3)), rank) for rank in range(4)] == [False, True, False, False]


def test_a_reason_makes_an_error_a_note_that_nobody_is_told() -> None:
    monitor, told = monitored(Loop(), 105, every=100, allow={"lost-update": "the rate is zero at the end"})
    assert told == []
    assert ("lost-update", "note") in [(finding.rule, finding.severity) for finding in monitor.report.findings]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps=0; pass a whole number from 1"),
        ({"steps": 10, "every": 5}, r"every=5; pass a whole number from 10 \(steps\)"),
        ({"every": 2.5}, r"every=2\.5; pass a whole number from 5 \(steps\)"),
        ({"tell": "wandb"}, r"tell is a str; pass a function of a text, as in tell=print"),
        ({"model": "gpt2"}, "model is a str; pass a torch.nn.Module"),
        ({"precision": "bf16-true"}, "cannot store what the block makes in bf16"),
    ],
)
def test_bad_arguments_are_refused_before_the_loop(options: dict[str, Any], message: str) -> None:
    with pytest.raises(precheck.InputError, match=message):
        precheck.monitor(**options)


def test_step_belongs_into_the_block() -> None:
    monitor = precheck.monitor()
    with pytest.raises(precheck.InputError, match=r"write `with precheck.monitor\(...\) as monitor:` around the loop"):
        monitor.step()
    with monitor:
        monitor.step()
    with pytest.raises(precheck.InputError, match="outside of the monitor's block"):
        monitor.step()
    with pytest.raises(precheck.InputError, match="make one for each loop"), monitor:
        pass
