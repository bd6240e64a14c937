"""Imports and calls the factory `package.module:factory` of --precision-model, and turns its result into arguments of `measure`."""

from __future__ import annotations

import importlib
import inspect
import keyword
import random
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from precheck.words import suggestion

ARGUMENTS = ("model", "inputs", "loss", "optimizer", "steps", "seed", "allow")
_FORM = "package.module:factory"
_EXAMPLE = (
    'a dict of measure\'s arguments, as in {"model": model, "inputs": torch.randn(4, 8), '
    '"loss": lambda out: out.square().mean(), "optimizer": lambda params: torch.optim.AdamW(params, lr=1e-3)}'
)


class FactoryError(ValueError):
    """The model of --precision-model cannot be made. The message says why, and what is accepted."""


def fault(spec: str) -> str:
    """Why `spec` cannot be the name of a factory. "" if it can. Imports nothing."""
    module, colon, name = spec.partition(":")
    if module.endswith(".py") or "/" in module or "\\" in module:
        dotted = module.removesuffix(".py").replace("\\", "/").strip("./").replace("/", ".")
        return f"{spec!r} names a file; accepted is {_FORM}, as in {dotted or 'package.module'}:{name or 'make_model'}"
    if not colon or not _dotted(module) or not _dotted(name):
        return f"{spec!r} is not of the form {_FORM}, as in models.gpt:make_model"
    return ""


def _dotted(name: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split("."))


def arguments(spec: str, *, device: str = "auto") -> tuple[dict[str, Any], str]:
    """Returns the factory's result as arguments of `measure`, and a note on the inputs if they were derived from the model, else "".

    The factory is imported and called without arguments, each time with the same random state. Model and inputs are moved to `device`
    unless it is "auto". Raises FactoryError, and what importing or calling the factory raises.
    """
    import torch

    from precheck.observe.state import random_kept

    with random_kept():
        _seed()
        factory = _imported(spec)
        _seed()
        offered = _called(spec, factory) if callable(factory) and not isinstance(factory, torch.nn.Module) else factory
        found = _arguments(spec, offered)
        derived = "inputs" not in found
        if derived:
            found["inputs"] = _example_inputs(spec, found["model"])
    return _on_device(found, device), _described(found["inputs"]) if derived else ""


def _seed() -> None:
    import torch

    torch.manual_seed(0)
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


def _imported(spec: str) -> Any:
    name, _, attribute = spec.partition(":")
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, but something that it imports does not
        raise FactoryError(
            f"--precision-model={spec}: there is no module {error.name} in the folder where pytest was started, nor elsewhere on sys.path; start "
            "pytest in the folder that holds it, install it, or name its folder in the ini option pythonpath"
        ) from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise FactoryError(f"--precision-model={spec}: {name} has no {attribute}{_suggestion(part, found)}")
        found = getattr(found, part)
    return found


def _suggestion(name: str, owner: Any) -> str:
    import difflib

    own = [each for each, value in vars(owner).items() if not each.startswith("_") and _offers(value, owner)]
    close = difflib.get_close_matches(name, own, n=1)
    return f"; do you mean {close[0]}?" if close else f"; it has {', '.join(own[:8])}" if own else ""


def _offers(value: Any, owner: Any) -> bool:
    return callable(value) and (not isinstance(owner, ModuleType) or getattr(value, "__module__", None) == owner.__name__)


def _called(spec: str, factory: Any) -> Any:
    wanting = _missing_arguments(factory)
    if wanting:
        raise FactoryError(
            f"--precision-model={spec} is called without arguments: {wanting}; give them defaults, or name a function that calls it with what it "
            "needs"
        )
    return factory()


def _missing_arguments(factory: Any) -> str:
    """Why a callable cannot be called without arguments. "" if it can, or if its signature is unknown, as for some C functions."""
    try:
        signature = inspect.signature(factory)
    except ValueError:
        return ""
    try:
        signature.bind()
    except TypeError as error:
        return str(error)
    return ""


def _arguments(spec: str, offered: Any) -> dict[str, Any]:
    import torch

    if isinstance(offered, torch.nn.Module):
        return {"model": offered}
    if not isinstance(offered, Mapping):
        raise FactoryError(f"--precision-model={spec} gave {_kind(offered)}; return a torch.nn.Module, or {_EXAMPLE}")
    if "precision" in offered:
        raise FactoryError(f"--precision-model={spec} gave a precision; leave it out of the dict, since --precision says under which the model runs")
    strange = [name for name in offered if name not in ARGUMENTS]
    if strange:
        raise FactoryError(f"--precision-model={spec} gave {strange[0]!r} among the arguments; {suggestion(strange[0], ARGUMENTS)}")
    if "model" not in offered:
        raise FactoryError(f"--precision-model={spec} gave a dict without a model; return {_EXAMPLE}")
    return dict(offered)


def _kind(value: Any) -> str:
    return "nothing (None)" if value is None else f"{'an' if type(value).__name__[0] in 'aeiouAEIOU' else 'a'} {type(value).__name__}"


def _example_inputs(spec: str, model: Any) -> Any:
    from precheck.observe.models.examples import example

    found = example(model) if hasattr(model, "modules") else None
    if found is None:
        raise FactoryError(
            f"--precision-model={spec} gave no inputs, and its model ({_kind(model)}) does not say what it takes, by example_input_array, "
            f"dummy_inputs, main_input_name with the sizes in config, or the first layer of a Sequential; return {_EXAMPLE}"
        )
    return found


def _described(inputs: Any) -> str:
    from precheck.observe.containers import tensors

    named = [(path.strip("[]") or "input", tensor) for path, tensor in tensors(inputs)]
    what = [f"{name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}" for name, tensor in named]
    return f"The factory gave no inputs; those derived from the model are {', '.join(what)}. If it takes others, return {_EXAMPLE}."


def _on_device(found: dict[str, Any], device: str) -> dict[str, Any]:
    import torch

    from precheck.observe.containers import mapped

    model = found["model"]
    if not isinstance(model, torch.nn.Module):
        return found
    if device != "auto":
        model.to(device)
        return found | {"inputs": mapped(found["inputs"], lambda tensor: tensor.to(device))}
    return found
