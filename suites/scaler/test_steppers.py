"""Skipped steps whoever steps: every kind of optimizer, two under one scaler, accumulation, restored scalers and subclasses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bugs.loops import Loop, told, watched
from spoiling import ROOM, TOO_STEEP, of, steep, trained, truly_overflowing

WAYS = [(kind, way) for kind in (torch.optim.SGD, torch.optim.AdamW) for way in ({"foreach": False}, {"foreach": True}, {"fused": True})]


@pytest.mark.parametrize(("kind", "way"), WAYS)
def test_every_kind_of_optimizer_is_judged_alike(kind: Any, way: dict[str, bool]) -> None:
    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return kind(parameters, lr=0.01, **way)

    healthy = watched(lambda: trained(30, scale=2.0**24, optimizer=optimizer))
    assert not told(healthy), healthy.summary()
    assert healthy.scaler["skipped"] == 24 - ROOM
    report = watched(lambda: truly_overflowing(optimizer=optimizer))
    assert [(finding.severity, finding.step) for finding in of(report, "scaler-skip")] == [("error", 4)]
    assert {finding.rule for finding in told(report)} <= {"scaler-skip", "overflow"}, report.summary()
    assert [skipped for _, skipped in report.scaler["history"]] == [False, False, False, True, False, False]


@pytest.mark.parametrize("way", [{"foreach": True}, {"fused": True}])
def test_skipped_steps_count_in_the_step_of_a_finding(way: dict[str, bool]) -> None:
    """Six of a burst, then the fourth."""

    def code() -> None:
        loop = trained(6, scale=2.0 ** (ROOM + 6), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, **way))
        for step in range(4):
            loop.optimizer.zero_grad()
            loop.scaler.scale(steep(loop, TOO_STEEP) if step == 3 else loop.loss()).backward()
            loop.step()

    assert [finding.step for finding in of(watched(code), "scaler-skip")] == [10]


def two_optimizers(scale: float, spoil: dict[int, float] | None = None) -> None:
    one = Loop(scale=scale)
    two = Loop(seed=5, scaler=one.scaler)
    for step in range(40):
        one.backward()
        two.optimizer.zero_grad()
        two.scaler.scale(two.loss() * (spoil or {}).get(step, 1.0)).backward()
        one.scaler.step(one.optimizer)
        one.scaler.step(two.optimizer)
        one.scaler.update()


@pytest.mark.parametrize("start", [10, 40])
def test_two_optimizers_under_one_scaler_calibrate_it_once(start: int) -> None:
    report = watched(lambda: two_optimizers(2.0**start))
    assert not told(report), report.summary()


def test_one_of_two_optimizers_is_skipped() -> None:
    report = watched(lambda: two_optimizers(1024.0, {20: 1e5}))
    assert not told(report), report.summary()
    assert [place for place, (_, skipped) in enumerate(report.scaler["history"]) if skipped] == [41]  # the second of the twenty-first


@pytest.mark.parametrize("start", [10, 40])
def test_accumulated_gradients_are_one_step(start: int) -> None:
    def code() -> None:
        loop = Loop(scale=2.0**start)
        for _ in range(40):
            loop.optimizer.zero_grad()
            for part in (slice(0, 8), slice(8, 16)):
                loop.scaler.scale(loop.loss(part) / 2).backward()
            loop.step()

    report = watched(code)
    assert not told(report), report.summary()
    assert report.scaler["steps"] == 40
    assert report.scaler["skipped"] == report.scaler["calibration"]


def test_a_restored_scaler_goes_on_where_it_was() -> None:
    first = trained(30, scale=2.0**24)
    kept = first.scaler.state_dict(), first.optimizer.state_dict()

    def code() -> None:
        again = Loop(scale=2.0**40)
        again.optimizer.load_state_dict(kept[1])
        again.scaler.load_state_dict(kept[0])
        for _ in range(5):
            again.backward()
            again.step()

    report = watched(code)
    assert not told(report), report.summary()
    assert report.scaler["history"] == [[2.0**ROOM, False]] * 5


class Own(torch.amp.GradScaler):
    """Somebody's own, with a step that calls through."""

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        return super().step(optimizer, *args, **kwargs)


def test_a_subclass_is_judged_as_its_parent() -> None:
    healthy = watched(lambda: trained(30, scaler=Own("cpu", init_scale=2.0**20)))
    assert not told(healthy), healthy.summary()
    assert healthy.scaler["skipped"] == 20 - ROOM
    report = watched(lambda: truly_overflowing(scaler=Own("cpu", init_scale=1024.0)))
    assert len(of(report, "scaler-skip")) == report.scaler["skipped"] == 1
