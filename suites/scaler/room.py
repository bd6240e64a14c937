"""The largest loss scale under which every gradient is finite: as `Report.scaler` predicts it, and by trying."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable

import torch

import precheck

Losses = Callable[[], list[torch.Tensor]]
"""The losses of one step, forward passes included; each is scaled and sent back by itself."""
LEAST, MOST = 0, 60
"""Exponents between which scales are tried."""


def sixteen() -> contextlib.AbstractContextManager[None]:
    """The policy of 16-mixed."""
    return precheck.PRECISIONS["16-mixed"].autocast()


def tried(parameters: Iterable[torch.Tensor], losses: Losses) -> int:
    """The exponent of the largest power of two under which all gradients are finite, from the least upwards."""
    parameters = list(parameters)
    made = losses()
    for exponent in range(LEAST, MOST):
        _forget(parameters)
        for loss in made:
            (loss * 2.0**exponent).backward(retain_graph=True)
        if not all(bool(each.grad.isfinite().all()) for each in parameters if each.grad is not None):
            _forget(parameters)
            assert exponent > LEAST, f"not even 2^{LEAST} is safe"
            return exponent - 1
    raise AssertionError(f"no scale up to 2^{MOST} overflows")


def predicted(parameters: Iterable[torch.Tensor], losses: Losses, scale: float = 2.0**8) -> float:
    """The exponent of the largest safe scale, from one step under `scale` that leaves the weights as they are."""
    optimizer = torch.optim.SGD(list(parameters), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with precheck.watch() as report:
        for loss in losses():
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()
    assert report.scaler["safe"] is not None, report.scaler
    return math.log2(report.scaler["safe"])


def _forget(parameters: Iterable[torch.Tensor]) -> None:
    for each in parameters:
        each.grad = None
