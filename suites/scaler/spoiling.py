"""Trainings of a `Loop` of which some steps are spoilt."""

from __future__ import annotations

from typing import Any

import torch
from bugs.loops import Loop
from torch import nn

from precheck.findings import Finding, Report

ROOM = 15
"""The exponent of the largest safe scale of `Loop`, which test_skips finds."""


def of(report: Report, rule: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.rule == rule]


def trained(steps: int, spoil: dict[int, float] | None = None, **facts: Any) -> Loop:
    """A loop whose loss is multiplied by `spoil[step]` at those steps."""
    loop = Loop(**facts)
    for step in range(steps):
        loop.optimizer.zero_grad()
        loop.scaler.scale(loop.loss() * (spoil or {}).get(step, 1.0)).backward()
        loop.step()
    return loop


TOO_STEEP = 2.0**50
"""Gradients of some 1e-3 become 1e12, 1e7 times what float16 holds."""


def steep(loop: Loop, slope: float) -> torch.Tensor:
    """The loss by way of float16 gradients that many times larger on the way back only."""
    with torch.autocast("cpu", dtype=torch.float16):
        out = loop.model(loop.x)
    wide = out.float() * slope
    return nn.functional.mse_loss(out.float() + (wide - wide.detach()), loop.y)


def truly_overflowing(slope: float = TOO_STEEP, **facts: Any) -> None:
    loop = Loop(**facts)
    for step in range(6):
        loop.optimizer.zero_grad()
        loop.scaler.scale(steep(loop, slope) if step == 3 else loop.loss()).backward()
        loop.step()
