"""How often the host waits for a CUDA device in a step at check depth, beyond the plain step; the budget is once a step."""

from __future__ import annotations

import warnings

import torch
from budgets import KINDS, Result, job
from ratios import Call
from sized import Trained

from precheck.observe.run import run
from precheck.observe.setting import low
from precheck.precisions import resolve

BUDGET = 1


def waiting(millions: int, kind: str, device: str) -> Result:
    plain, asked, precision = Trained(millions, device=device, **KINDS[kind]), job(millions, device), resolve(kind)
    plain.step()  # whatever waits only once has waited
    extra = waits(lambda: run(asked, low(precision))) - waits(plain.step)
    return Result("host synchronisations of a checked step", kind, millions, extra, BUDGET)


def waits(call: Call) -> int:
    """torch warns of each synchronisation under this mode."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("synchronizing CUDA operation" in str(each.message) for each in told)
