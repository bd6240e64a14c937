"""Whole numbers that the reference refuses on a CPU never reach a device, where they would end the process's use of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import precheck
from precheck.kernels import indices, running
from precheck.kernels.examples import read
from precheck.kernels.indices import Indices

LOGITS, TARGETS = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)), torch.tensor([6, 0, 3, 2, 5])


def refused(monkeypatch: pytest.MonkeyPatch, *, on_device: bool) -> int:
    """How many calls of a comparison raise an IndexError, among those that would reach a device."""
    found, plain = 0, running._called

    def called(*args: Any) -> None:
        nonlocal found
        try:
            plain(*args)
        except IndexError:
            found += 1
            raise

    with monkeypatch.context() as patched:
        patched.setattr(running, "_called", called)
        if on_device:
            patched.setattr(indices, "asked", Indices)
        report = precheck.compare_kernels(F.cross_entropy, F.cross_entropy, (LOGITS, TARGETS), trials=120)
    assert report.verdict == "rounding", report.summary()
    return found


def test_no_call_has_indices_that_the_reference_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(monkeypatch, on_device=False) > 0, "no trial has such indices, so that this test says nothing"
    assert refused(monkeypatch, on_device=True) == 0


def test_a_reference_is_asked_once_for_the_same_numbers() -> None:
    asked = 0

    def reference(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        nonlocal asked
        asked += 1
        return table[index]

    (example,) = read((torch.randn(4, 3), torch.tensor([0, 3])), None, True)
    beside = Indices(reference, example)
    assert asked == 1, "the example itself"
    table = torch.randn(4, 3)
    for _ in range(3):
        assert isinstance(beside.refusal([table, torch.tensor([0, 4])], {}), IndexError)
        assert beside.refusal([table, torch.tensor([2, 1])], {}) is None
    assert asked == 3
    assert isinstance(beside.refusal([table[:3], torch.tensor([0, 3])], {}), IndexError)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_who_cannot_be_asked_refuses_nothing(dtype: torch.dtype) -> None:
    def on_a_device(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("pointer argument cannot be accessed from Triton")

    (example,) = read((torch.ones(4, dtype=dtype),), None, True)
    assert Indices(on_a_device, example).refusal([torch.full((4,), 9, dtype=dtype)], {}) is None


def test_on_a_cpu_nobody_is_asked() -> None:
    (example,) = read((LOGITS, TARGETS), None, True)
    assert indices.asked(F.cross_entropy, example) is None


def test_a_module_is_asked_as_a_copy_and_one_that_cannot_be_copied_is_not() -> None:
    table = torch.nn.Embedding(4, 3)
    (example,) = read((torch.tensor([0, 3]),), None, True)
    assert isinstance(Indices(table, example).refusal([torch.tensor([4])], {}), IndexError)
    table.held = (each for each in ())  # a generator cannot be copied
    assert Indices(table, example).refusal([torch.tensor([4])], {}) is None


def test_a_function_of_an_extension_is_not_given_tensors_on_a_cpu() -> None:
    """It may take their memory for a device's. torch's own functions look where a tensor lies."""
    assert indices._on_a_cpu(math.sqrt) is None
    assert indices._on_a_cpu(torch.softmax) is torch.softmax
