"""Hooks on modules: record what each module returns, and the gradient of that.

A tensor is recorded once, under the innermost module that made it. Numbers after "#" count the calls of a module. Tensors that a backward
pass recomputes (activation checkpointing) are not recorded again.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Container, Iterator
from types import CodeType
from typing import Any, Protocol

import torch

from precheck.observe.containers import tensors
from precheck.observe.models.stack_depth import room
from precheck.observe.models.uncompiled import uncompiled
from precheck.observe.profiling import Unheard
from precheck.observe.recording.functions import Functions
from precheck.observe.recording.recorder import Recorder
from precheck.observe.records import Trace
from precheck.observe.setting import Setting
from precheck.observe.shadow.replaying.replay import addressable
from precheck.torch_internals import in_backward, is_transformed, script_optimized, scripts_compiled_anew, storage_key, version
from precheck.torch_support.dense_parts import holds_numbers

LOW = (torch.bfloat16, torch.float16)


class Disturbance(Protocol):
    """The changes that a noise run makes to tensors where the low run rounds."""

    @property
    def rounded(self) -> Container[str]:
        """The records of outputs that the low run stored in its format."""

    def parameter(self, name: str, value: torch.Tensor) -> torch.Tensor: ...

    def input(self, value: torch.Tensor) -> torch.Tensor: ...

    def read(self, value: torch.Tensor) -> torch.Tensor:
        """The value to read in place of an input that the low run has cast."""

    def output(self, key: str, tensor: torch.Tensor) -> None:
        """Disturbs an output in place, so that later ops and autograd's saved tensors have the disturbed values."""

    def gradient(self, key: str, gradient: torch.Tensor) -> torch.Tensor: ...

    @property
    def everywhere(self) -> bool:
        """Whether `result` is to be called for every op, and not only `output` for every module."""

    def result(self, tensor: torch.Tensor) -> None: ...

    def products(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which the operands of matrix products are disturbed, for formats that round there."""


class Position:
    """The module call that is running, and how many low-format results its own code has made. `inside`: whether model or loss are running."""

    def __init__(self) -> None:
        self.inside = False
        self.stack: list[tuple[str, int]] = [("", 0)]
        self.rounded: Callable[[], None] = lambda: None  # called for each rounding

    @property
    def call(self) -> str:
        return self.stack[-1][0]

    def enter(self, call: str) -> None:
        self.stack.append((call, 0))

    def leave(self, name: str) -> tuple[str, int]:
        """Ends a call and returns it with its count. Returns `name` if no call was begun (a module that another hook called)."""
        return self.stack.pop() if len(self.stack) > 1 else (name, 0)

    def count(self, roundings: int = 1) -> None:
        call, before = self.stack[-1]
        self.stack[-1] = (call, before + roundings)
        self.rounded()


class Hook:
    """A hook of a module whose own code may copy or pickle the module. A copy records as the module does; what is pickled records nothing."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[..., None]) -> None:
        self.call = call

    def __call__(self, *given: Any) -> None:
        self.call(*given)

    def __deepcopy__(self, memo: Any) -> Hook:
        return self

    def __reduce__(self) -> Any:
        return Hook, (nothing,)


def nothing(*given: Any) -> None:
    pass


class Boundaries:
    """Records the outputs of the modules of `model`, and their gradients, into `trace`, while `attached`."""

    def __init__(
        self, model: torch.nn.Module, trace: Trace, setting: Setting | None = None, *, sampled: Container[str] = (), loss: Any = None
    ) -> None:
        self.model, self.trace, self.setting = model, trace, setting or Setting(None)
        self.disturbance, self.fast_path, self.witness = self.setting.disturbance, self.setting.fast_path, self.setting.watching
        self.recorder = Recorder(trace, self.setting, sampled=sampled)
        self.position = Position()
        self.functions: Functions | None = None
        if self.setting.functions or self.setting.files:
            self.functions = Functions(self.recorder, _forwards(model, loss), self.position, results=self.setting.functions)
            self.position.rounded = self.functions.rounded
        self.enabled = True
        self.result = "output" if not hasattr(model, "output") else "output[]"  # if a child has that name
        self.step = 1
        self.calls: Counter[str] = Counter()
        self.made: dict[int, tuple[torch.Tensor, int, str]] = {}  # for one forward pass only
        self.storages: set[int] = set()  # the storages of the tensors in `made`

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        handles = []
        for name, module in [("", self.model)] if self.setting.compiled else self.model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):  # accepts no Python hooks
                continue
            if not self.fast_path:
                handles.append(module.register_forward_pre_hook(Hook(self._entering(name)), with_kwargs=True))
            handles.append(module.register_forward_hook(Hook(self._leaving(name)), always_call=not self.fast_path))
        try:
            with room(), contextlib.nullcontext() if self.setting.compiled else uncompiled(), interpreted():
                yield
            self.recorder.learn()
        finally:
            for handle in handles:
                handle.remove()
            self._let_go()

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Encloses a forward pass and its loss. TorchScript compiles anew, since code that it optimised before would go on running."""
        self.position.inside = True
        if self.step == 1:
            scripts_compiled_anew()
        try:
            if self.functions is None or not self.enabled:
                yield
                return
            self.functions.step = self.step
            with self.functions.watched():
                yield
        finally:
            self.position.inside = False

    def forward_done(self, result: Any) -> None:
        """After a forward pass: marks the records of the model's own result, and releases the tensors of the pass."""
        with Unheard():
            self._done(result)

    def _done(self, result: Any) -> None:
        if isinstance(self.model, torch.jit.ScriptModule) and self.enabled:  # no hook has seen it
            self._returned("", result, self.position.stack[0][1])
        for path, tensor in tensors(result):
            if self.witness is not None:
                self.witness.boundary("result", path, self.step, tensor)
            known = self.made.get(id(tensor))
            if known and known[0] is tensor and known[2] in self.trace.records:
                self.recorder.result(known[2], tensor)
                self.trace.results.setdefault(path, known[2])  # the first step counts
        self._let_go()
        self.calls.clear()

    def _let_go(self) -> None:
        self.made.clear()
        self.storages.clear()

    def _keep(self, tensor: torch.Tensor, writes: int, key: str) -> None:
        self.made[id(tensor)] = (tensor, writes, key)
        self.storages.add(storage_key(tensor))

    def _entering(self, name: str) -> Any:
        def hook(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            call = self._call(name)
            if self.setting.module_inputs and self.enabled and name:
                for path, tensor in tensors((*args, *kwargs.values())):
                    self._handed(f"{call}{path}", tensor)
            self.position.enter(call)

        return hook

    def _handed(self, name: str, tensor: torch.Tensor) -> None:
        """Records a tensor that a module receives, if none has returned or received it before."""
        known = self.made.get(id(tensor))
        if not _measurable(tensor) or in_backward() or (known and known[0] is tensor and known[1] == version(tensor)):
            return
        key = f"handed:{name}@{self.step}"
        self._keep(tensor, version(tensor), key)
        self.trace.makers[key] = self.position.call
        self.recorder.add("handed", name, self.step, tensor)

    def _leaving(self, name: str) -> Any:
        def hook(module: torch.nn.Module, args: Any, output: Any) -> None:
            call, roundings = self.position.leave(name)
            if self.enabled and output is not None:
                with Unheard():
                    self._returned(call, output, roundings)

        def fast_hook(module: torch.nn.Module, args: Any, output: Any) -> None:
            """The hook of the fast path. It does not need `position`. It counts calls when they end, and a module may call itself."""
            call = self._call(name)
            if self.enabled and output is not None:
                self._returned(call, output, 0)

        return fast_hook if self.fast_path else hook

    def _call(self, name: str) -> str:
        if not in_backward():
            self.calls[name] += 1
        return f"{name}#{self.calls[name]}" if self.calls[name] > 1 else name

    def _returned(self, call: str, output: Any, roundings: int) -> None:
        for path, tensor in tensors(output):
            self._passed(f"{call}{path}" or self.result, tensor, roundings)

    def _passed(self, name: str, tensor: torch.Tensor, roundings: int) -> None:
        if not _measurable(tensor):
            return
        writes = version(tensor)
        known, key = self.made.get(id(tensor)), f"output:{name}@{self.step}"
        passed_on = known is not None and known[0] is tensor and known[1] == writes
        if passed_on and (known is None or not self._stored(key, known[2])):
            if known is not None and key != known[2]:
                self.trace.same[key] = known[2]
            return
        if self.disturbance is not None and (passed_on or storage_key(tensor) not in self.storages):  # else it is a view of another module's output
            self.disturbance.output(key, tensor)
        if not passed_on:
            self._keep(tensor, writes, key)
        if not in_backward():
            self.recorder.add("output", name, self.step, tensor, roundings)
            if tensor.requires_grad and not self.fast_path:
                tensor.register_hook(self._gradient_hook(name, key, roundings, self.step))

    def _stored(self, key: str, given: str) -> bool:
        """Whether the low run has stored this result in its format, and not the tensor `given`, which a float32 run passes on as it is."""
        rounded = () if self.disturbance is None else self.disturbance.rounded
        return key in rounded and given not in rounded

    def _gradient_hook(self, name: str, key: str, roundings: int, step: int) -> Any:
        def hook(gradient: torch.Tensor | None) -> torch.Tensor | None:
            if not self.enabled:
                return None
            if gradient is None or gradient.layout != torch.strided:  # None: the loss does not depend on this one of several results
                return None
            disturbed = gradient if self.disturbance is None else self.disturbance.gradient(key, gradient)
            self.recorder.add("gradient", name, step, disturbed, roundings)
            return disturbed if disturbed is not gradient else None

        return hook


def _forwards(model: torch.nn.Module, loss: Any) -> set[CodeType]:
    """The code of modules' forward methods and of the loss, whose results are recorded anyway. A class that replaces a module's own, as the class of
    `in_float32` does, calls the forward method of the class before it."""
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    found = (getattr(vars(kind).get("forward"), "__code__", None) for kind in kinds)
    return {code for code in (*found, *(getattr(each, "__code__", None) for each in (getattr(model, "function", None), loss))) if code is not None}


def _measurable(tensor: torch.Tensor) -> bool:
    """Whether it is dense and holds numbers, not codes. A subclass that wraps other tensors has no memory of its own to be read."""
    return (holds_numbers(tensor) or tensor.is_complex()) and addressable(tensor) and not is_transformed(tensor)


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Inside, TorchScript runs op by op: code that its executor compiled under one precision does not run under another."""
    before = script_optimized(False)
    try:
        yield
    finally:
        script_optimized(before)
