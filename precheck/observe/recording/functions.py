"""Records what the user's own functions return in a forward pass and its loss, such as a rotary table, a router's scores or a divergence.

A function is a boundary like a module. A good implementation adds no error beyond that of its inputs and of the lines on which it rounds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
import sysconfig
import weakref
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch

from precheck.observe.containers import tensors
from precheck.observe.recording import call_events
from precheck.observe.recording.recorder import Recorder
from precheck.observe.shadow.places.source import KINDS
from precheck.observe.shadow.replaying.replay import addressable
from precheck.torch_internals import in_backward, is_transformed, no_class_code, version
from precheck.torch_support.dense_parts import holds_numbers

if TYPE_CHECKING:
    from precheck.observe.recording.module_hooks import Position

_LIBRARY = sysconfig.get_path("stdlib")
_PAUSES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclasses.dataclass(slots=True)
class _Call:
    frame: FrameType
    lines: set[tuple[int, int]] = dataclasses.field(default_factory=set)  # ids of code and lines that rounded something, also in functions it called


class Functions:
    """Records the results of functions while `watched`, and notes the files of code. The code in `forwards` belongs to modules, whose results are
    recorded elsewhere. Without `results` only files are noted."""

    def __init__(self, recorder: Recorder, forwards: Collection[CodeType], position: Position, *, results: bool = True) -> None:
        self.recorder, self.forwards, self.position, self.results = recorder, forwards, position, results
        self.kinds = dict[int, tuple[bool, CodeType]]()  # by id, since hashing code is slow
        self.calls: Counter[int] = Counter()  # by id of the code
        self.stack: list[_Call] = []
        self.made: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self.step = 1

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, calls of the user's functions are recorded and numbered from 1, as far as `call_events` tells of them."""
        self.calls.clear()
        try:
            with call_events.told(self._own, self._begun, self._ended):
                yield
        finally:
            ran = {code.co_filename for _, code in self.kinds.values()}
            self.recorder.trace.files = {each for each in ran if KINDS[each] in ("user", "installed") and not _of_python(each)}
            self.stack.clear()
            self.made.clear()

    def _begun(self, frame: FrameType) -> None:
        self.stack.append(_Call(frame))

    def _ended(self, frame: FrameType, result: Any) -> None:
        if self.stack and self.stack[-1].frame is frame:
            with no_class_code():  # `__new__` returns a tensor whose `__init__` has not run yet
                self._returned(self.stack.pop(), result)

    def rounded(self) -> None:
        """Notes that something was rounded on the current line of the innermost function."""
        if self.stack:
            frame = self.stack[-1].frame
            self.stack[-1].lines.add((id(frame.f_code), frame.f_lineno))

    def _own(self, code: CodeType) -> bool:
        known = self.kinds.get(id(code))
        if known is None:
            named = self.results and not code.co_name.startswith("<") and not code.co_flags & _PAUSES and code not in self.forwards
            known = self.kinds[id(code)] = named and KINDS[code.co_filename] == "user", code
        return known[0]

    def _returned(self, call: _Call, result: Any) -> None:
        if self.stack:
            self.stack[-1].lines |= call.lines
        if in_backward() or result is None:
            return
        code = call.frame.f_code
        self.calls[id(code)] += 1
        number = f"#{self.calls[id(code)]}" if self.calls[id(code)] > 1 else ""
        for path, tensor in tensors(result):
            if self._fresh(tensor):
                name = f"{getattr(code, 'co_qualname', code.co_name)}(){number}{path}"
                self.recorder.add("returned", name, self.step, tensor, max(1, len(call.lines)))
                key = f"returned:{name}@{self.step}"
                self.recorder.trace.records[key].place = _place(code)
                self.recorder.trace.makers[key] = self.position.call

    def _fresh(self, tensor: torch.Tensor) -> bool:
        """Whether it is dense, real and no wrapper of other tensors, holds no codes, and no other function has returned it already."""
        held = tensor.is_leaf and tensor.requires_grad  # a parameter
        if held or not holds_numbers(tensor) or not addressable(tensor) or is_transformed(tensor):
            return False
        known, writes = self.made.get(id(tensor)), version(tensor)
        if known is not None and known[0]() is tensor and known[1] == writes:
            return False
        self.made[id(tensor)] = weakref.ref(tensor), writes
        return True


def _place(code: CodeType) -> tuple[str, int, int]:
    """The file of a function, and its first and last line."""
    lines = [line for _, _, line in code.co_lines() if line]
    return code.co_filename, code.co_firstlineno, max(lines, default=code.co_firstlineno)


def _of_python(path: str) -> bool:
    """Whether it is a file of Python's own library, which changes with Python's version alone. Packages lie in a folder of the same one."""
    file = Path(path)
    return file.is_relative_to(_LIBRARY) and file.relative_to(_LIBRARY).parts[0].removesuffix(".py") in sys.stdlib_module_names
