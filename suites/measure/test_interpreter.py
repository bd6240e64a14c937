"""A measurement's garbage collections pass over what was there before, and the process's collector is as it was afterwards. Its frames lie in one
piece."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
import torch

import precheck
from precheck import interpreter


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _nothing_is_frozen(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(interpreter._Frozen, "by_process", False)
    frozen = gc.get_freeze_count()  # as conftest.py does, and packages of an environment may
    gc.unfreeze()
    yield
    gc.unfreeze()
    if frozen:
        gc.freeze()


def test_nothing_stays_frozen() -> None:
    frozen = []

    def loss(output: torch.Tensor) -> torch.Tensor:
        frozen.append(gc.get_freeze_count())
        return output.sum()

    precheck.measure(torch.nn.Linear(4, 4), torch.randn(2, 4), loss=loss)
    assert min(frozen) > 1000
    assert gc.get_freeze_count() == 0


def test_nor_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError):
        interpreter.spared(lambda: 1 / 0)()
    assert gc.get_freeze_count() == 0


def test_what_a_process_has_frozen_itself_stays_frozen() -> None:
    own = Cycle()
    assert any(each is own for each in gc.get_objects())
    gc.freeze()
    interpreter.spared(interpreter.spared(lambda: None))()
    assert not any(each is own for each in gc.get_objects())  # which has none that is frozen


def test_what_is_frozen_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count takes tens of milliseconds. A block within a block asks for none, nor one after the first that found objects of the process."""
    counted = []
    count = gc.get_freeze_count
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counted.append(count()) or counted[-1])
    interpreter.spared(interpreter.spared(lambda: None))()
    assert counted == [0]
    gc.freeze()
    interpreter.spared(lambda: None)()
    interpreter.spared(lambda: None)()
    assert len(counted) == 2
    assert counted[-1] > 0


def test_garbage_of_the_block_is_collected_in_it_and_older_garbage_after_it() -> None:
    older = Cycle()
    kept = weakref.ref(older)
    del older

    @interpreter.spared
    def block() -> None:
        made = Cycle()
        new = weakref.ref(made)
        del made
        gc.collect()
        assert new() is None
        assert kept() is not None

    block()
    gc.collect()
    assert kept() is None


def test_no_call_below_a_roomy_one_needs_a_new_piece_of_the_stack() -> None:
    """A piece that is given back and taken again has new pages, each of which is a fault when it is first written."""
    resource = pytest.importorskip("resource")

    def faults(depth: int) -> int:
        if depth:
            return faults(depth - 1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(100):
            deeper(12)
        return int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

    def deeper(depth: int) -> None:
        if depth:
            deeper(depth - 1)

    faults(300)
    if sys.version_info >= (3, 11) and sys.platform == "linux":
        assert max(map(faults, range(0, 200, 5))) >= 100
    assert max(map(interpreter.roomy(faults), range(0, 200, 5))) < 50
