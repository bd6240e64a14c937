"""What nests as deeply as a model can run alone is measured and watched too."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from torch import nn

import precheck
from precheck.observe.models.stack_depth import room

INPUTS = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def nested(depth: int) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = nn.Identity()
    for _ in range(depth):
        model = nn.Sequential(model)
    return nn.Sequential(nn.Linear(4, 4), model)


def runs(model: nn.Module) -> bool:
    try:
        model(INPUTS)
    except RecursionError:
        return False
    return True


@pytest.fixture
def deepest() -> nn.Module:
    """Of all that run where a test does, the deepest."""
    fits, fails = 1, sys.getrecursionlimit()
    while fails - fits > 1:
        half = (fits + fails) // 2
        fits, fails = (half, fails) if runs(nested(half)) else (fits, half)
    return nested(fits - fits // 4 if sys.version_info[:2] == (3, 12) else fits)  # its own limit on calls from C cannot be moved


def test_the_deepest_model_is_measured_and_watched(deepest: nn.Module) -> None:
    limit = sys.getrecursionlimit()
    report = precheck.measure(deepest, INPUTS, precision="bf16-mixed", loss=lambda out: out.mean())
    assert report.boundaries
    with precheck.watch(deepest, precision="bf16-mixed"):
        deepest(INPUTS).mean().backward()
    assert sys.getrecursionlimit() == limit


def test_the_limit_comes_back_when_the_last_block_ends() -> None:
    limit = sys.getrecursionlimit()
    one, other = room(), room()
    one.__enter__()
    thread = threading.Thread(target=other.__enter__)
    thread.start()
    thread.join()
    one.__exit__(None, None, None)
    assert sys.getrecursionlimit() > limit
    other.__exit__(None, None, None)
    assert sys.getrecursionlimit() == limit


def test_a_limit_that_the_block_sets_stays() -> None:
    limit = sys.getrecursionlimit()
    try:
        with room():
            sys.setrecursionlimit(limit + 1)
        assert sys.getrecursionlimit() == limit + 1
    finally:
        sys.setrecursionlimit(limit)
