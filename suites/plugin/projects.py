"""The source text of small projects that use precheck."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Project = Callable[..., Path]
"""project(code, ..., record=True): writes a test file of these pieces, records its goldens, and returns their folder."""

PREAMBLE = '''
import pytest
import torch

import precheck


def make(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))


def data():
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


def loss(out):
    return out.float().square().mean()


class Overflows(torch.nn.Module):
    """Healthy in bfloat16, out of range in float16."""

    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.wide(x * 1e5) / 1e5


'''

HEALTHY = '''
def test_healthy(check_precision):
    check_precision(make(), data(), loss=loss)
'''

OVERFLOWS = '''
def test_overflows(check_precision):
    torch.manual_seed(0)
    check_precision(Overflows(), data())
'''

FAKED = '''
import pytest

from precheck.findings import Finding, Report, Row


def said(model, inputs, *, golden, precision, **settings):
    """In place of a real check: `inputs` says, by precision, what is found; `model` is the r of the one tensor there is."""
    rules = inputs.get(precision.name, ())
    findings = [Finding(rule, severity, f"told of layer under {precision.name}") for severity, rule in rules]
    row = Row("layer", "output", 1, (2, 2), "bfloat16", r=model, allowed=3.0, drift=model, floor=1.0, relative=0.01, nonfinite=0)
    return Report(precision=precision.name, findings=findings, boundaries=[row])


@pytest.fixture(autouse=True)
def faked(monkeypatch):
    import precheck.checking
    from precheck.plugin.checks import CheckPrecision

    monkeypatch.setattr(precheck.checking, "check", said)
    monkeypatch.setattr(CheckPrecision, "_cure", lambda *found: "")  # there is no model to cure
    monkeypatch.setattr("precheck.plugin.remembered.applies", lambda *asked: False)  # nor one to run
'''
"""A conftest that makes check_precision(r, {precision: [(severity, rule), ...]}) find what it is told, for tests of what follows."""

FAKED_LIGHT = (
    FAKED.partition("@pytest.fixture")[0]
    + '''
import sys
import types

sys.modules["precheck.checking"] = types.SimpleNamespace(check=said)
sys.modules["precheck.observe.job"] = types.SimpleNamespace(InputError=type("InputError", (Exception,), {}))
import precheck.plugin.remembered
from precheck.plugin.checks import CheckPrecision

CheckPrecision._cure = lambda self, *found: ""  # there is no model to cure
precheck.plugin.remembered.applies = lambda *asked: False  # nor one to run
'''
)
"""The same without torch, which takes seconds to import in each process; for runs in processes of their own."""
