"""Modules kept in float32 while the model around them runs low: by code that a user can paste, which is what runs here too.

The module's class is replaced by a subclass of it, as FSDP2's `fully_shard` and `torch.nn.utils.parametrize` do, so that hooks,
copies, names and state dicts are those of before. What runs inside sees float32 tensors, float32 weights and no autocast; what
comes back is in the format of the model around it.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from precheck.observe import state


def cast(value: Any, source: Sequence[torch.dtype], target: torch.dtype) -> Any:
    """`value` with the tensors of those dtypes cast, inside tuples, lists and dicts too; the same object if there are none."""
    if isinstance(value, torch.Tensor):
        return value.to(target) if value.dtype in source else value
    if not isinstance(value, (tuple, list, dict)):
        return value
    items = list(value.values() if isinstance(value, dict) else value)
    changed = [cast(item, source, target) for item in items]
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
        low = (torch.bfloat16, torch.float16)
        held = itertools.chain(self.parameters(), self.buffers(), args, kwargs.values())
        device = next((tensor.device.type for tensor in held if isinstance(tensor, torch.Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            result = super().forward(*cast(args, low, torch.float32), **cast(kwargs, low, torch.float32))
            return cast(result, (torch.float32,), self.around_dtype)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        def unrounded(tensor: torch.Tensor) -> torch.Tensor:
            moved: torch.Tensor = fn(tensor)
            return tensor.to(moved.device) if moved.dtype in (torch.bfloat16, torch.float16) else moved

        self.around_dtype = fn(torch.empty(0, dtype=self.around_dtype)).dtype
        apply: Any = super()._apply
        return apply(unrounded, recurse)


def in_float32(model: torch.nn.Module, names: Sequence[str]) -> None:
    """Keeps the modules of those names in float32, for good; `model` may be converted or moved later."""
    around = next((param.dtype for param in model.parameters() if param.is_floating_point()), torch.float32)
    for module in [model.get_submodule(name) for name in names]:
        module.float()
        module.__class__ = type(type(module).__name__, (InFloat32, type(module)), {"around_dtype": around})


def code(names: Sequence[str], precision: str) -> str:
    """A program text without precheck that does to a variable `model` what `in_float32` does."""
    note = f"# Passed under {precision}. Runs where `model` is made; autocast and model.to(...) then leave these modules in float32.\n"
    imports = "import copy\nimport itertools\nfrom collections.abc import Sequence\nfrom typing import Any\n\nimport torch\n"
    parts = [inspect.getsource(part) for part in (cast, InFloat32, in_float32)]
    listed = "".join(f"    {json.dumps(name)},\n" for name in names)
    return "\n\n".join([note + imports, *parts, f"in_float32(model, [\n{listed}])\n"])


@contextlib.contextmanager
def exempted(model: torch.nn.Module, names: Sequence[str]) -> Iterator[None]:
    """The modules of those names are kept in float32 inside the block, and as they were after it."""
    classes = [(module, type(module)) for module in map(model.get_submodule, names)]
    with state.preserved(model):
        try:
            in_float32(model, names)
            yield
        finally:
            for module, before in classes:
                module.__class__ = before


def kept(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that say of themselves, by an attribute `keep_in_float32`, that conversion to a low format leaves them alone."""
    return [module for module in model.modules() if getattr(module, "keep_in_float32", False) is True]


def storage(model: torch.nn.Module) -> frozenset[int]:
    """Where the weights and buffers of `kept` modules lie."""
    return frozenset(tensor.data_ptr() for module in kept(model) for tensor in (*module.parameters(), *module.buffers()))


def converted(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Tells `kept` modules what is stored around them, which a conversion by `model.to` would have told them."""
    for module in kept(model):
        if hasattr(module, "around_dtype"):
            module.around_dtype = dtype  # type: ignore[assignment]
