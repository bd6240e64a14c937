"""Gives shadows to tensors that are made from Python numbers in a low format, since that rounds like a cast.

For `torch.tensor([0.1, 0.2], dtype=torch.bfloat16)` a dispatch mode sees only `lift_fresh`, on numbers that are rounded already. So the
functions that take numbers are wrapped while a block is watched, and keep their arguments until `lift_fresh` is seen. (A numpy array is
first made a tensor and then cast by an op, which the mode sees.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy
import torch

from precheck.observe.shadow.call import Call
from precheck.observe.shadow.comparing import measuring
from precheck.observe.shadow.operations import Operation, Value
from precheck.observe.shadow.replaying.replay import OpCall, addressable, items_in, plan
from precheck.observe.shadow.torch_wrappers import Wrapped, Wrappers, watching
from precheck.torch_internals import CAST, active_modes

if TYPE_CHECKING:
    from precheck.observe.shadow.mode import Shadow

REMEMBERED = 1 << 16
"""How many of the latest numbers given to Python are remembered, to recognise them when they come back."""
_NUMBERS = (bool, int, float, complex, list, tuple, range, numpy.number)
_tensor = torch.tensor


class _Giving(Wrapped):
    """Remembers the numbers that it returns to the user. Without an active mode the caller is precheck itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        numbers = self.__wrapped__(*args, **kwargs)
        watchers: list[Any] = list(filter(watching, active_modes()))
        if not watchers:
            return numbers
        for mode in watchers:
            mode.places.given(args[0])
        known = _thread.known
        fresh = [number for number in itertools.islice(items_in(numbers), REMEMBERED) if isinstance(number, float) and number % 1]
        known.update(dict.fromkeys(fresh))
        for number in list(itertools.islice(known, max(0, len(known) - REMEMBERED))):
            del known[number]
        return numbers


class _Taking(Wrapped):
    """Keeps the numbers that it was given while it runs."""

    def __init__(self, original: Callable[..., Any], place: int) -> None:
        super().__init__(original)
        self.place = place

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        numbers = args[self.place] if len(args) > self.place else kwargs.get("data", kwargs.get("obj"))
        if not isinstance(numbers, _NUMBERS):
            return self.__wrapped__(*args, **kwargs)
        given = _thread.given
        given.append(numbers)
        try:
            return self.__wrapped__(*args, **kwargs)
        finally:
            given.pop()


class _Thread(threading.local):
    """For each thread: the arguments of the calls that are running, innermost last, and the numbers that its tensors returned."""

    def __init__(self) -> None:
        self.given: list[Any] = []
        self.known: dict[float, None] = {}


_thread = _Thread()


FUNCTIONS: Wrappers = dict.fromkeys(("tensor", "as_tensor", "asarray"), functools.partial(_Taking, place=0))
METHODS: Wrappers = {
    "new_tensor": functools.partial(_Taking, place=1), "__setitem__": functools.partial(_Taking, place=2),
    **dict.fromkeys(("item", "tolist", "__float__"), _Giving),
}  # fmt: skip
"""Torch's functions and tensor methods that take Python numbers, and those that return a tensor's numbers to Python."""


def forget() -> None:
    """Forgets the numbers that this thread's tensors returned."""
    _thread.known.clear()


def after_entry(mode: Shadow, tensor: torch.Tensor) -> None:
    """Gives a new tensor the exact numbers as its shadow, if torch rounded them. Never raises, since the call is the user's."""
    given = _thread.given
    if not given or not addressable(tensor):
        return
    numbers = given[-1]
    if tensor.dtype not in mode.low:
        mode.wide.constant(numbers, tensor)
        return
    alone: tuple[float, ...] = (float(numbers),) if isinstance(numbers, (int, float, numpy.floating)) else ()
    call = Call(mode, OpCall(CAST, plan(CAST), alone, {}), [], [], [])
    with mode.lock, mode.unseen(), contextlib.suppress(Exception):
        wide = _tensor(numbers, dtype=mode.replay.reference, device=tensor.device)
        if wide.shape != tensor.shape or torch.equal(wide.to(tensor.dtype).to(wide.dtype), wide):
            return
        call.prepare()
        if all(number in _thread.known for number in items_in(numbers) if isinstance(number, float) and number % 1):
            call.operation.inputs = (_computed(call.operation),)
        value = measuring.fresh(call, tensor)
        measuring.measure_cast(call, value, tensor, wide, None)
        call.operation.outputs = (value,)
        mode.memory.put(tensor, wide, value)
        if isinstance(numbers, float) and not call.operation.inputs:
            mode.function_replay.written(call, tensor, wide)
        mode.record(call.operation)


def _computed(operation: Operation) -> Value:
    """A value for numbers that came from a tensor and passed through Python."""
    read = dataclasses.replace(operation, name="tolist", inputs=(), outputs=(), scalars=())
    return Value(read, (), "float", 0.0)
