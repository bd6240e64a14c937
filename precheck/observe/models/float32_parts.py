"""Modules, or some functions that they call, kept in float32 while the model around them runs low. The code that does so is code that a user can
paste, and it is what runs here too.

The module's class is replaced by a subclass of it, as FSDP2's `fully_shard` and `torch.nn.utils.parametrize` do. So hooks, copies, names and state
dicts stay as they were. Inside, code sees float32 tensors, float32 weights and no autocast. The result is in the format of the model around it. Of
single functions, arguments are float32 and weights as they are.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import inspect
import itertools
import json
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, get_overridable_functions

from precheck.observe import state
from precheck.torch_support.dense_parts import address
from precheck.words import described


def each(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with its tensors changed, inside tuples, lists and dicts too; the same object if `change` gives back each as it is."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if not isinstance(value, (tuple, list, dict)):
        return value
    items = list(value.values() if isinstance(value, dict) else value)
    changed = [each(item, change) for item in items]
    if all(new is old for new, old in zip(changed, items, strict=True)):
        return value
    if isinstance(value, dict):
        clone = copy.copy(value)
        for name, item in zip(value, changed, strict=True):
            clone[name] = item
        return clone
    make: Any = type(value)
    return make(*changed) if hasattr(value, "_fields") else make(changed)


class InFloat32(torch.nn.Module):
    """Mixed into a module's class: computes in float32, on weights that stay float32 whatever the model is converted to."""

    keep_in_float32 = True
    around_dtype = torch.float32  # what the model around it is stored in, and so what it answers in

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        def wide(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor

        def back(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(self.around_dtype) if tensor.dtype is torch.float32 else tensor

        held = itertools.chain(self.parameters(), self.buffers(), args, kwargs.values())
        device = next((tensor.device.type for tensor in held if isinstance(tensor, torch.Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            return each(super().forward(*each(args, wide), **each(kwargs, wide)), back)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        def unrounded(tensor: torch.Tensor) -> torch.Tensor:
            moved: torch.Tensor = fn(tensor)
            return tensor.to(moved.device) if moved.dtype in (torch.bfloat16, torch.float16) else moved

        self.around_dtype = fn(torch.empty(0, dtype=self.around_dtype)).dtype
        apply: Any = super()._apply
        return apply(unrounded, recurse)


def modules_named(model: torch.nn.Module, names: Sequence[str]) -> list[torch.nn.Module]:
    """The modules with these names."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is {described(model)}; pass a torch.nn.Module")
    if isinstance(names, str):
        raise TypeError(f"names={names!r} is a str; pass a list: [{names!r}]")
    if not names:
        known = next((each for each, _ in model.named_modules() if each), "")
        raise ValueError(f"names={names!r} names no module; pass at least one, as in [{known!r}]; \"\" is the model itself")
    found = []
    for name in names:
        if not isinstance(name, str):
            own = next((f"[{each!r}]" for each, module in model.named_modules() if module is name), '["layers.0"]')
            raise TypeError(f"names holds {described(name)}; pass names of modules, as in {own}")
        try:
            found.append(model.get_submodule(name))
        except AttributeError:
            known = [each for each, _ in model.named_modules() if each]
            close = difflib.get_close_matches(name, known, n=1)
            meant = f"do you mean {close[0]!r}?" if close else f"it has {', '.join(known[:8]) or 'none'}"
            raise AttributeError(f"{type(model).__name__} has no module {name!r}; {meant}") from None
    return found


def in_float32(model: torch.nn.Module, names: Sequence[str]) -> None:
    """Keeps modules in float32 for good: their weights stay float32, and they compute in it, whatever the model is converted to.

    Args:
        model: Changed in place. It may be converted or moved later.
        names: As `model.get_submodule` takes them; "" is the model itself.

    Raises:
        AttributeError: There is no module of that name.
        TypeError: `names` is a str, or `model` is no module.
        ValueError: `names` is empty.
    """
    modules = modules_named(model, names)
    around = next((param.dtype for param in model.parameters() if param.is_floating_point()), torch.float32)
    for module in modules:
        module.float()
        kind = type(module)
        known = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}  # by which some libraries know their own
        module.__class__ = type(kind.__name__, (InFloat32, kind), {"around_dtype": around, **known})


class Widened(TorchFunctionMode):
    """Carries out torch's functions of those names in float32; all others get the results in the format they would have had."""

    def __init__(self, names: Container[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, named, low = function.__name__, kwargs or {}, []

        def wide(tensor: torch.Tensor) -> torch.Tensor:
            dtype = getattr(tensor, "narrow_dtype", tensor.dtype)
            if dtype not in (torch.bfloat16, torch.float16):
                return tensor
            low.append(dtype)
            return tensor.float()

        def marked(tensor: torch.Tensor) -> torch.Tensor:
            if low and tensor.dtype is torch.float32:
                tensor.narrow_dtype = low[0]  # type: ignore[attr-defined]
            return tensor

        if name in ("__get__", "__set__", "__setitem__") or (name.endswith("_") and not name.endswith("__")):
            return function(*args, **named)  # properties, and what writes in place
        if name not in self.names:
            return function(*each(args, narrow), **each(named, narrow))
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            return each(function(*each(args, wide), **each(named, wide)), marked)


def narrow(tensor: torch.Tensor) -> torch.Tensor:
    """A result of a widened function in the format that it would have had; any other tensor as it is."""
    return tensor.to(getattr(tensor, "narrow_dtype", tensor.dtype))


class PartlyInFloat32(torch.nn.Module):
    """Mixed into a module's class: some of the functions that it calls compute in float32, on weights as they are."""

    functions_in_float32: Container[str] = ()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with Widened(self.functions_in_float32):
            result = super().forward(*args, **kwargs)
        return each(result, narrow)


def functions_in_float32(model: torch.nn.Module, names: Sequence[str], functions: Container[str]) -> None:
    """Carries out some of torch's functions in float32, where modules call them; the results have the format they would have had.

    Args:
        model: Changed in place.
        names: Names of modules, as `model.get_submodule` takes them.
        functions: Their `__name__`: "softmax", "pow".

    Raises:
        AttributeError: There is no module of that name.
        TypeError: `names` or `functions` is a str.
        ValueError: `names` is empty, torch has no function of that name, or it writes in place, where the tensor decides on the format.
    """
    keep_functions(modules_named(model, names), functions_named(functions))


def keep_functions(modules: Iterable[torch.nn.Module], functions: Container[str]) -> None:
    """Makes the modules carry out these functions in float32. Names that torch has no function for do nothing."""
    for module in modules:
        kind = type(module)
        known = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        module.__class__ = type(kind.__name__, (PartlyInFloat32, kind), {"functions_in_float32": functions, **known})


def functions_named(functions: Container[str]) -> Container[str]:
    """The same names, if each that can be listed is that of a function that `TorchFunctionMode` sees."""
    if isinstance(functions, str):
        raise TypeError(f"functions={functions!r} is a str; pass a list: [{functions!r}]")
    known = {getattr(function, "__name__", "") for every in get_overridable_functions().values() for function in every}
    for name in functions if isinstance(functions, Collection) else ():
        if name.endswith("_") and not name.endswith("__"):
            raise ValueError(f"{name} writes in place, so it computes in the format of the tensor that it changes; call {name[:-1]} in the model")
        if name not in known and not any(hasattr(place, name) for place in (torch, torch.Tensor, torch.nn.functional, torch.linalg, torch.special)):
            last = name.rpartition(".")[2]
            close = [last] if last in known else difflib.get_close_matches(last, sorted(known), n=1)
            meant = f"do you mean {close[0]!r}?" if close else 'pass names as in ["softmax", "pow"]'
            raise ValueError(f"torch has no function {name!r}; {meant}")
    return functions


def code(names: Sequence[str], functions: Sequence[str], precision: str) -> str:
    """A program text without precheck that does to a variable `model` what `in_float32`, or `functions_in_float32`, does."""
    what = "carry those functions out in float32" if functions else "leave these modules in float32"
    note = f"# Passed under {precision}. Runs where `model` is made; autocast and model.to(...) then {what}.\n"
    listed = "".join(f"    {json.dumps(name)},\n" for name in names)
    if functions:
        library = "import torch\nfrom torch.overrides import TorchFunctionMode, get_overridable_functions\n"
        imports = "import copy\nimport difflib\nfrom collections.abc import Callable, Collection, Container, Iterable, Sequence\n"
        written = (each, modules_named, functions_named, Widened, narrow, PartlyInFloat32, keep_functions, functions_in_float32)
        parts: tuple[Any, ...] = written
        last = f"functions_in_float32(model, [\n{listed}], {json.dumps(list(functions))})\n"
    else:
        library, imports = "import torch\n", "import copy\nimport difflib\nimport itertools\nfrom collections.abc import Callable, Sequence\n"
        parts, last = (each, modules_named, InFloat32, in_float32), f"in_float32(model, [\n{listed}])\n"
    return "\n\n".join([note + imports + "from typing import Any\n\n" + library, *map(inspect.getsource, parts), last])


@contextlib.contextmanager
def exempted(model: torch.nn.Module, names: Sequence[str], functions: Container[str] = ()) -> Iterator[None]:
    """Inside the block, the modules with these names are kept in float32, or only those of their functions. After it they are as before."""
    classes = [(module, type(module)) for module in map(model.get_submodule, names)]
    with state.preserved(model):
        try:
            if functions:
                keep_functions(modules_named(model, names), functions)  # a run's own names, of which some are no functions of torch
            else:
                in_float32(model, names)
            yield
        finally:
            for module, before in classes:
                module.__class__ = before


def inside(name: str, other: str) -> bool:
    """Whether the module `name` is `other` or a part of it. "" is the model."""
    return not other or name == other or name.startswith(f"{other}.")


def majority(modules: Mapping[str, torch.nn.Module], names: Sequence[str]) -> bool:
    """Whether `names` are more than half of a model's modules, by those that have no parts. `modules` has all of them by name."""
    leaves = [name for name, module in modules.items() if not any(True for _ in module.children())]
    return 2 * sum(any(inside(leaf, name) for name in names) for leaf in leaves) > len(leaves)


def kept_in_float32(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that say of themselves, by an attribute `keep_in_float32`, that conversion to a low format leaves them alone."""
    return [module for module in model.modules() if getattr(module, "keep_in_float32", False) is True]


def storage(modules: Iterable[torch.nn.Module]) -> frozenset[int]:
    """Where the weights and buffers of `kept` modules lie."""
    return frozenset(address(tensor) for module in modules for tensor in (*module.parameters(), *module.buffers()))


def converted(modules: Iterable[torch.nn.Module], dtype: torch.dtype) -> None:
    """Tells `kept` modules what is stored around them, which a conversion by `model.to` would have told them."""
    for module in modules:
        if hasattr(module, "around_dtype"):
            module.around_dtype = dtype  # type: ignore[assignment]


@contextlib.contextmanager
def set_apart(model: torch.nn.Module) -> Iterator[None]:
    """Inside the block, what `kept` modules give back is never a tensor that they go on using.

    In a low run it never is, since the result is cast. If it were in the reference, the gradient that comes back for it there would include what the
    module makes of it (a router that returns its logits and the weights made from them).
    """

    def alias(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor) if tensor.requires_grad and tensor.layout == torch.strided else tensor

    handles = [module.register_forward_hook(lambda _module, _args, output: each(output, alias)) for module in kept_in_float32(model)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
