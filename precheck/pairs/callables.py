"""Turns what users compare into modules: functions, compiled models, exported models, sessions of ONNX Runtime."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from precheck.observe.job import InputError
from precheck.observe.models.functions import Called
from precheck.words import described

_WRAPPED = re.compile(r"\b_orig_mod\.|\._orig_mod\b|^_orig_mod$")


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
