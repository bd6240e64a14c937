"""What a user has without precheck, on the cases of the zoo: each check says whether it objects, or None where it does not apply."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

LOW = {torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2}
Result = list[torch.Tensor]


class InFloat32(TorchDispatchMode):
    """The same code in float32: whatever it asks for in a low format it gets in float32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return func(*tree_map(_widened, args), **tree_map(_widened, kwargs or {}))


def _widened(value: Any) -> Any:
    if isinstance(value, torch.dtype) and value in LOW:
        return torch.float32
    if isinstance(value, torch.Tensor) and value.dtype in LOW:
        return value.float()
    return value


def leaves(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result.detach()
    elif isinstance(result, tuple | list):
        for item in result:
            yield from leaves(item)


def results(code: Callable[[], Any]) -> tuple[Result, Result]:
    """What the code returns as it is, and what it returns in float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's, about schedules without steps
        low = list(leaves(code()))
        with InFloat32():
            wide = list(leaves(code()))
    return low, wide


def not_finite(low: Result, wide: Result) -> bool | None:
    """A NaN or an Inf in the result."""
    return any(not bool(torch.isfinite(each.float()).all()) for each in low) if low else None


def far(low: Result, wide: Result) -> bool | None:
    """torch.testing.assert_close against float32, at its defaults."""
    return _objects(lambda: torch.testing.assert_close(low, wide, check_dtype=False)) if low else None


def far_by_plugin(low: Result, wide: Result) -> bool | None:
    """pytest-torch's comparison of outputs with float32, at its defaults but for the dtypes, which differ on purpose."""
    plugin = importlib.import_module("pytest_torch")
    return _objects(lambda: plugin.assert_outputs_close(low, wide, check_dtype=False)) if low else None


def overflowing(case: dict[str, Any]) -> bool:
    """transformers' DebugUnderflowOverflow on a forward pass of the model at its precision; a tf32 product is float32 on a CPU."""
    from transformers.debug_utils import DebugUnderflowOverflow

    precision, model, inputs = case["precision"], case["model"], case["inputs"]
    dtype = {"bf": torch.bfloat16, "16": torch.float16, "tf": torch.float32}[precision[:2]]
    mixed = precision.endswith("mixed")
    if not mixed:
        model = model.to(dtype)
        inputs = tree_map(lambda each: each.to(dtype) if each.is_floating_point() else each, inputs)
    DebugUnderflowOverflow(model)
    try:
        with torch.autocast("cpu", dtype=dtype if mixed else torch.bfloat16, enabled=mixed):
            model(**inputs) if isinstance(inputs, dict) else model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    except ValueError as error:
        if "inf/nan detected" not in str(error):
            raise
        return True
    return False


def _objects(check: Callable[[], None]) -> bool:
    try:
        check()
    except AssertionError:
        return True
    return False


PLUGIN = importlib.util.find_spec("pytest_torch") is not None
RIVALS: dict[str, Callable[[Result, Result], bool | None]] = {
    "NaN or Inf in the result": not_finite,
    "assert_close with float32, defaults": far,
    **({"pytest-torch assert_outputs_close": far_by_plugin} if PLUGIN else {}),
}
DEBUGGER = "DebugUnderflowOverflow (models)"
