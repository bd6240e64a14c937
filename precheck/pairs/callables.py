"""Turns what users compare into modules: functions with the modules they use, compiled models, exported models, sessions of ONNX Runtime."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from precheck.observe.job import InputError
from precheck.words import described

_WRAPPED = re.compile(r"\b_orig_mod\.|\._orig_mod\b|^_orig_mod$")


class Called(torch.nn.Module):
    """A function as a module. Modules that it can reach (closure, `self`, bound arguments, named globals) become children, so that their weights are
    converted and restored like those of any model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["function"] = function  # not registered as a child: the weights of a compiled module have the names of the original module
        for name, module in _reached(function):
            self.add_module(name.replace(".", "_"), module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["function"](*args, **kwargs)


class Borrowed(torch.nn.Module):
    """A module with the children and weights of `original`, under the same names. Its forward pass is the original's, `compiled` if that is given, or
    that of a subclass."""

    def __init__(self, original: torch.nn.Module, compiled: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.__dict__ |= {name: getattr(original, name) for name in ("_parameters", "_buffers", "_modules") if hasattr(original, name)}
        self.__dict__ |= {"original": original, "compiled": original if compiled is None else compiled}
        self.training = getattr(original, "training", False)  # a script that was frozen has no mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["compiled"](*args, **kwargs)

    def modules(self, *args: Any, **kwargs: Any) -> Iterator[torch.nn.Module]:
        """Includes the original, whose own attributes have to be restored too."""
        yield from super().modules(*args, **kwargs)
        yield from dict.fromkeys((self.__dict__["original"], self.__dict__["compiled"]))


class Hosted(Borrowed):
    """A compiled model, with the children and weights of the original module."""


def users_name(text: str) -> str:
    """A name, or a text with names, as the user wrote them: torch.compile keeps a part that it compiled in a module `_orig_mod` of its own."""
    return _WRAPPED.sub("", text)


def as_module(given: Any, name: str) -> torch.nn.Module:
    """The module to run for a user's argument. Raises InputError if it cannot be called."""
    if isinstance(given, torch.nn.Module):
        original = getattr(given, "_orig_mod", None)
        if isinstance(given, torch.jit.ScriptModule):
            return Borrowed(given)  # which takes hooks
        if given.__dict__.get("_compiled_call_impl") is not None:
            return Hosted(given, given)  # whose hooks are not compiled
        return Hosted(original, given) if isinstance(original, torch.nn.Module) else given
    exported = sys.modules.get("torch.export")
    if exported is not None and isinstance(given, exported.ExportedProgram):
        return _exported(given)
    if _is_session(given):
        return Called(functools.partial(_asked, given))
    if isinstance(given, type) and issubclass(given, torch.nn.Module):
        raise InputError(f"{name} is {described(given)}; pass an instance, as in {given.__name__}(...)")
    if not callable(given):
        raise InputError(f"{name} is {described(given)}; pass a torch.nn.Module, a function of tensors, or a compiled or exported model")
    return Called(given)


def _exported(program: Any) -> torch.nn.Module:
    """An exported program with the modules that it was made from, so that a fault can be named in one; as one module if torch cannot do that."""
    whole: torch.nn.Module = program.module()
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")  # torch's own, of how it copies its trees
        return torch.export.unflatten(program)
    return whole


def keeps_formats(module: torch.nn.Module) -> bool:
    """Whether the module is a graph of ONNX Runtime, which computes in its own formats in every run, whatever its inputs are."""
    function = module.__dict__.get("function")
    return isinstance(function, functools.partial) and function.func is _asked


def gives_float32(module: torch.nn.Module) -> bool:
    """Whether it is a graph of ONNX Runtime that gives results in float32 or lower, so that float64 cannot be asked for."""
    types = [each.type for each in module.__dict__["function"].args[0].get_outputs()] if keeps_formats(module) else []
    return any(each in ("tensor(float)", "tensor(float16)", "tensor(bfloat16)") for each in types)


def _is_session(given: Any) -> bool:
    """Whether it is a session of ONNX Runtime. Works without ONNX Runtime installed."""
    runtime = sys.modules.get("onnxruntime")
    return runtime is not None and isinstance(given, runtime.InferenceSession)


def _asked(session: Any, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
    """The outputs of a session: a tensor, or several by name. Inputs are passed by position or by the graph's names. The graph computes in its own
    formats only."""
    names = [each.name for each in session.get_inputs()]
    given = dict(zip(names, args, strict=False)) | kwargs
    if set(given) != set(names):
        raise TypeError(f"the ONNX graph takes {', '.join(names)}; it was given {', '.join(given)}")
    feeds = {name: value.detach().cpu().contiguous().numpy() for name, value in given.items()}
    wrong = {each.name: each.type for each in session.get_inputs() if each.type == "tensor(float)" and feeds[each.name].dtype != "float32"}
    if wrong:
        raise TypeError(f"the ONNX graph takes float32 for {', '.join(wrong)}")
    made = [torch.as_tensor(each) for each in session.run(None, feeds)]
    return made[0] if len(made) == 1 else dict(zip((each.name for each in session.get_outputs()), made, strict=True))


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether the module or a part of it runs code that torch.compile made."""
    if isinstance(module, Borrowed):
        return isinstance(module, Hosted) or is_compiled(module.__dict__["original"])
    if isinstance(module, Called):
        return hasattr(_plain(module.__dict__["function"]), "_torchdynamo_orig_callable")
    return any(hasattr(each, "_orig_mod") or each.__dict__.get("_compiled_call_impl") is not None for each in module.modules())


def _plain(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function) if not hasattr(function, "_torchdynamo_orig_callable") else function


def _reached(function: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules that a function can reach, each once and with its name in the function. Also those in lists and dicts."""
    seen: set[int] = set()
    for name, value in _bound(function):
        for place, module in _modules(name, value):
            if id(module) not in seen:
                seen.add(id(module))
                yield place, module


def _modules(name: str, value: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    if isinstance(value, torch.nn.Module):
        yield name, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _modules(f"{name}_{key}", each) if isinstance(each, torch.nn.Module) else ()
    elif isinstance(value, (list, tuple)):
        for place, each in enumerate(value):
            yield from _modules(f"{name}_{place}", each) if isinstance(each, torch.nn.Module) else ()


def _bound(function: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > 3:  # a function that calls another function of the user's, and so on
        return
    if isinstance(function, functools.partial):
        yield from ((f"bound{place}", each) for place, each in enumerate(function.args))
        yield from function.keywords.items()
        function = function.func
    function = getattr(function, "_torchdynamo_orig_callable", function)
    while True:  # through decorators, each of which keeps what it wraps
        if isinstance(function, torch.nn.Module):
            yield "wrapped", function
            return
        owner = getattr(function, "__self__", None)
        if owner is not None and not inspect.ismodule(owner):
            yield "self", owner
            yield from (vars(owner).items() if hasattr(owner, "__dict__") and not isinstance(owner, torch.nn.Module) else ())
        if not inspect.isroutine(function) and hasattr(function, "__dict__"):
            yield from vars(function).items()  # an object with a __call__
        inner = getattr(function, "__func__", function)
        if not hasattr(inner, "__wrapped__"):
            break
        function = inner.__wrapped__
    code = getattr(inner, "__code__", None)
    if code is None:
        return
    cells = zip(code.co_freevars, inner.__closure__ or (), strict=False)
    reached = {name: cell.cell_contents for name, cell in cells if _filled(cell)}
    reached |= {name: inner.__globals__[name] for name in code.co_names if name in inner.__globals__}
    yield from reached.items()
    for each in reached.values():
        if inspect.isfunction(each) and not each.__module__.startswith("torch"):
            yield from _bound(each, depth + 1)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
