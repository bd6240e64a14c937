"""A measurement's garbage collections pass over what was there before, and the process's collector is as it was afterwards."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import precheck
from precheck import garbage_collector


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _nothing_is_frozen() -> Any:
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
    with pytest.raises(ZeroDivisionError), garbage_collector.sparing():
        1 / 0  # noqa: B018
    assert gc.get_freeze_count() == 0


def test_what_a_process_has_frozen_itself_stays_frozen() -> None:
    own = Cycle()
    assert any(each is own for each in gc.get_objects())
    gc.freeze()
    with garbage_collector.sparing(), garbage_collector.sparing():
        pass
    assert not any(each is own for each in gc.get_objects())  # which has none that is frozen


def test_garbage_of_the_block_is_collected_in_it_and_older_garbage_after_it() -> None:
    older = Cycle()
    kept = weakref.ref(older)
    del older
    with garbage_collector.sparing():
        made = Cycle()
        new = weakref.ref(made)
        del made
        gc.collect()
        assert new() is None
        assert kept() is not None
    gc.collect()
    assert kept() is None
