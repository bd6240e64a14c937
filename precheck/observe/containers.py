"""Walks the containers that a model takes and returns (tuples, lists, dicts, dataclasses, named tuples), finds their tensors and changes them."""

from __future__ import annotations

import copy
import dataclasses
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from precheck.torch_internals import AccumulateGrad
from precheck.words import described


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor in `value` with its path: "" for a bare tensor, "[1]", "[logits]", "[0][2]"."""
    return ((place, each) for place, each in named_items(value, path) if isinstance(each, torch.Tensor))


def named_items(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each item in `value` that is not a container, with its path."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from named_items(item, f"{path}[{name}]")
    elif isinstance(value, (tuple, list)):
        for place, item in enumerate(value):
            yield from named_items(item, f"{path}[{place}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, (type, torch.Tensor)):
        for field in dataclasses.fields(value):
            yield from named_items(getattr(value, field.name, None), f"{path}[{field.name}]")
    else:
        yield path, value


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of the container with `change` applied to each tensor. Other items are passed on."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        changed = {name: mapped(item, change) for name, item in value.items()}
        return changed if type(value) is dict else _refilled(value, changed)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(item, change) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(mapped(item, change) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: mapped(getattr(value, f.name), change) for f in dataclasses.fields(value) if hasattr(value, f.name)}
        clone = copy.copy(value)
        for name, item in changed.items():
            object.__setattr__(clone, name, item)
        return clone
    return value


def _refilled(value: Any, changed: dict[Any, Any]) -> Any:
    clone = copy.copy(value)
    for name, item in changed.items():
        clone[name] = item
    return clone


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """Calls `model` on `inputs`: a tuple as positional arguments, a dict or other mapping as keywords, anything else as one argument."""
    try:
        if isinstance(inputs, Mapping):
            return model(**inputs)
        if isinstance(inputs, tuple) and not hasattr(inputs, "_fields"):
            return model(*inputs)
        return model(inputs)
    except TypeError as refused:
        targets = (
            "; targets go into the loss, as in loss=lambda out: criterion(out, targets)"
            if isinstance(inputs, (tuple, list)) and len(inputs) > 1
            else ""
        )
        if not _note(refused, f"inputs is {_described(inputs)}; {_PASSED}{targets}"):
            _note_no_tensor(refused, inputs)
        raise
    except AttributeError as refused:
        _note_no_tensor(refused, inputs)
        raise
    except RuntimeError as refused:
        _note_dtype(refused, model, inputs)
        raise


_PASSED = "a tuple is passed as positional arguments, a dict as keyword arguments, anything else as one argument"
_WANTS_TENSOR = r"must be Tensor, not (\w+\.)?{0}\b|^'{0}' object has no attribute"
"""The words of torch and Python for an argument of another type where a tensor is needed."""


def _described(given: Any) -> str:
    kind = type(given).__name__
    if isinstance(given, Mapping) and given:
        return f"a {kind} with the keys {', '.join(map(str, given))}"
    if isinstance(given, (tuple, list, Mapping)):
        return f"a {kind} of {len(given)}" if given else f"an empty {kind}"
    return described(given)


def _note_no_tensor(refused: Exception, inputs: Any) -> None:
    """Adds a note to an error that names the type of an argument which is no tensor, where the model wants one. Each argument is looked at."""
    if isinstance(inputs, Mapping):
        given = [(f"inputs[{name!r}]", each) for name, each in inputs.items()]
    elif isinstance(inputs, tuple) and not hasattr(inputs, "_fields"):
        given = [(f"inputs[{place}]", each) for place, each in enumerate(inputs)]
    else:
        given = [("inputs", inputs)]
    for name, each in given:
        if not isinstance(each, torch.Tensor) and re.search(_WANTS_TENSOR.format(re.escape(type(each).__name__)), str(refused)):
            add_note(refused, f"{name} is {_described(each)}, and the model uses it as a tensor; {_instead(name, each)}")
            return


def _note_dtype(refused: RuntimeError, model: Any, inputs: Any) -> None:
    """Adds a note to an error of torch that names the dtype of an input which the model's weights do not have, as of float64 data from numpy."""
    weights = model.parameters() if isinstance(model, torch.nn.Module) else ()
    held = next((each.dtype for each in weights if each.is_floating_point()), None)
    if held is None or "type" not in str(refused):
        return
    for path, each in tensors(inputs):
        named = {each.dtype} | ({held} if each.is_floating_point() else set())
        if each.dtype is not held and any(re.search(rf"\b{_TORCH_NAMES.get(dtype, '-')}\b", str(refused), re.IGNORECASE) for dtype in named):
            mine, theirs = (str(dtype).removeprefix("torch.") for dtype in (each.dtype, held))
            add_note(refused, f"inputs{path} is a tensor of {mine}, and the model's weights are {theirs}; pass inputs{path}.to({held})")
            return


_TORCH_NAMES = {
    torch.float64: "(double|DoubleTensor)", torch.float32: "(float|FloatTensor)", torch.int64: "(long|int64_t|LongTensor)",
    torch.int32: "(int|IntTensor)", torch.uint8: "(byte|unsigned char|ByteTensor)", torch.float16: "(half|c10::Half)",
    torch.bfloat16: "(bfloat16|c10::BFloat16)",
}  # fmt: skip
"""How messages of torch name dtypes."""


def _instead(name: str, each: Any) -> str:
    """What to pass instead of an argument that is no tensor."""
    if not any(True for _ in tensors(each)):
        return "pass a tensor" if each is None or isinstance(each, str) else f"pass a tensor, as in torch.as_tensor({name})"
    several = f", or tuple({name}) if its items are several arguments" if isinstance(each, list) and name == "inputs" else ""
    return f"pass the tensor itself{several}: {_PASSED}"


def scored(loss: Callable[[Any], torch.Tensor], result: Any) -> torch.Tensor:
    """Calls `loss` with the model's result, and returns what it gives."""
    try:
        return loss(result)
    except TypeError as refused:
        _note(refused, "loss is called with what the model returns, alone; with targets write loss=lambda out: criterion(out, targets)")
        raise


def made(optimizer: Callable[..., Any], parameters: list[torch.nn.Parameter]) -> Any:
    """Calls the user's function that makes an optimizer."""
    try:
        return optimizer(parameters)
    except TypeError as refused:
        _note(refused, "optimizer is called with a list of parameters, alone; write optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3)")
        raise


def _note(refused: TypeError, words: str) -> bool:
    """Adds `words` to the error, if the call itself did not fit the signature of what was called. Returns whether that was so."""
    frames, outside = traceback.walk_tb(refused.__traceback__), (__file__, torch.nn.modules.module.__file__)
    misfit = all(frame.f_code.co_filename in outside for frame, _ in frames)
    if misfit:
        add_note(refused, words)
    return misfit


def add_note(refused: Exception, words: str) -> None:
    if hasattr(refused, "add_note"):  # from Python 3.11
        refused.add_note(words)


def leaves(loss: torch.Tensor) -> Iterator[torch.Tensor]:
    """The leaf tensors that the backward pass of `loss` would reach."""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, AccumulateGrad):
            yield node.variable
        waiting += [each for each, _ in node.next_functions]
