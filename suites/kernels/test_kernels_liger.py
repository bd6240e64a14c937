"""Published kernels of liger-kernel beside torch's formulas: Triton's interpreter runs them on a CPU. `pip install liger-kernel triton`"""

from __future__ import annotations

import importlib.util

import pytest

PAIRS = """
import math

import pytest
import torch
from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
from liger_kernel.ops.jsd import LigerJSDFunction
from liger_kernel.ops.rope import LigerRopeFunction
from liger_kernel.ops.softmax import LigerSoftmaxFunction

import precheck

F, DRAWN = torch.nn.functional, torch.Generator().manual_seed(0)
X, LABELS = torch.randn(8, 24, generator=DRAWN).requires_grad_(), torch.randint(0, 24, (8,), generator=DRAWN)
LOGS = [torch.randn(6, 20, generator=DRAWN).log_softmax(-1) for _ in range(2)]
TABLES = [torch.randn(9, 4, generator=DRAWN).repeat(1, 2)[None] for _ in range(2)]
HEADS = [torch.randn(2, 3, 9, 8, generator=DRAWN).requires_grad_() for _ in range(2)]


def divergence(x, y):
    middle = torch.logaddexp(x, y) - math.log(2)
    return (0.5 * y.exp() * (y - middle) + 0.5 * x.exp() * (x - middle)).sum() / len(x)


def turned(q, k, cos, sin):
    def turn(x):
        first, second = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]

    return turn(q), turn(k)


@pytest.mark.parametrize(("candidate", "reference", "inputs"), [
    (LigerSoftmaxFunction.apply, lambda x: x.softmax(-1), (X,)),
    (lambda x, y: LigerCrossEntropyFunction.apply(x.clone(), y, None)[0], F.cross_entropy, (X, LABELS)),
    (lambda x, y: LigerJSDFunction.apply(x, y, None, 0.5, -100), divergence, (LOGS[0].requires_grad_(), LOGS[1])),
    (LigerRopeFunction.apply, turned, (*HEADS, *TABLES)),
], ids=["softmax", "cross entropy", "jsd", "rope"])
def test_pair(candidate, reference, inputs):
    report = precheck.compare_kernels(candidate, reference, inputs, trials=100)
    assert not report.errors, report.summary()
    assert report.facts["trials"] >= 3 or report.verdict == "not judged"
"""


@pytest.mark.skipif(any(importlib.util.find_spec(each) is None for each in ("triton", "liger_kernel")), reason="pip install liger-kernel triton")
def test_published_kernels_are_not_accused(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytester.makepyfile(PAIRS)
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest").assert_outcomes(passed=4)
