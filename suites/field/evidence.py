"""`python suites/field/evidence.py CASE PRECISION [FILE.py:LINE ...]`: what float64 says of a case, and what keeping lines in float32 changes.

One forward and backward pass in float64, float32 and the precision, of the same weights and inputs, without precheck. Each error is relative
to the Euclidean norm in float64. With lines, one pass more: what is called from these lines is computed in float32.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from contextlib import nullcontext
from typing import Any

import torch
from fieldcase import Case, loaded
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from trained import AUTOCAST, cast

Left = dict[str, torch.Tensor]
SCALE = 2.0**10
"""Of the loss in float16. Gradients are divided by it."""


class KeptInFloat32(TorchFunctionMode):
    """Computes in float32 what is called from some lines."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = [(name, int(number)) for name, _, number in (line.rpartition(":") for line in lines)]
        self.hits = 0
        super().__init__()

    def _called_from(self) -> bool:
        frame = sys._getframe(2)
        while frame is not None:
            if any(frame.f_lineno == number and frame.f_code.co_filename.endswith(name) for name, number in self.lines):
                return True
            frame = frame.f_back  # type: ignore[assignment]
        return False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._called_from():
            try:
                return function(*args, **kwargs)
            except RuntimeError as error:
                if "dtype" not in str(error) and "type" not in str(error):
                    raise
                args, kwargs = tree_map(lambda value: _as(value, torch.float32, torch.bfloat16), (args, kwargs))
                return function(*args, **kwargs)
        self.hits += 1
        wide = tree_map(lambda value: _as(value, None, torch.float32), (args, kwargs))
        with torch.autocast("cpu", enabled=False):
            return function(*wide[0], **wide[1])


class SameNumbers(TorchFunctionMode):
    """Random numbers in float64 are those that float32 draws."""

    DRAWS = ("randn", "rand", "randn_like", "rand_like", "normal_", "uniform_", "normal", "exponential_", "dropout", "orthogonal_", "bernoulli")

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name not in self.DRAWS:
            return function(*args, **kwargs)
        if name.endswith("_"):
            return args[0].copy_(function(args[0].float(), *args[1:], **kwargs))
        narrow = tree_map(lambda value: value.float() if isinstance(value, torch.Tensor) and value.dtype is torch.float64 else value, (args, kwargs))
        if name in ("randn", "rand"):
            narrow[1]["dtype"] = torch.float32
        return function(*narrow[0], **{key: torch.float32 if value is torch.float64 else value for key, value in narrow[1].items()}).double()


def _as(value: Any, of: torch.dtype | None, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.dtype):
        return dtype if value in (torch.bfloat16, torch.float16) else value
    low = (of,) if of else (torch.bfloat16, torch.float16)
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype in low else value


def passed(case: Case, precision: str, lines: list[str]) -> Left:
    """Outputs, loss and gradients of one pass, in float64."""
    made = case.made()
    dtype = {"64-true": torch.float64, "bf16-true": torch.bfloat16}.get(precision, torch.float32)
    model, inputs = made.model.train().to(dtype), cast(made.inputs, dtype)
    low = AUTOCAST.get(precision)
    scale = SCALE if precision == "16-mixed" else 1.0
    kept = KeptInFloat32(lines)
    torch.manual_seed(1)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if precision == "64-true" else default)
    try:
        same = SameNumbers() if precision == "64-true" else nullcontext()
        with same, kept if lines else nullcontext(), torch.autocast("cpu", dtype=low) if low else nullcontext():
            out = model(*inputs)
            loss = made.loss(out)
        if loss.requires_grad:
            (loss * scale).backward()
    finally:
        torch.set_default_dtype(default)
    if lines:
        print(f"kept in float32: {kept.hits} calls")
    leaves = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    left = {f"output {number}": leaf.detach().double() for number, leaf in enumerate(leaves)} | {"loss": loss.detach().double()}
    return left | {f"gradient {name}": value.grad.double() / scale for name, value in model.named_parameters() if value.grad is not None}


def off(one: Left, exact: Left) -> dict[str, float]:
    """How far each tensor is off, relative to its norm."""
    return {name: float((one[name] - exact[name]).norm() / exact[name].norm().clamp_min(1e-300)) for name in exact if name in one}


def main() -> int:
    """Prints a row for each tensor, those first that are farthest off."""
    parser = argparse.ArgumentParser(prog="python suites/field/evidence.py", description=__doc__)
    parser.add_argument("case")
    parser.add_argument("precision")
    parser.add_argument("lines", nargs="*")
    parser.add_argument("--most", type=int, default=8)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    case = loaded()[asked.case]
    exact = passed(case, "64-true", [])
    columns = {"32-true": off(passed(case, "32-true", []), exact), asked.precision: off(passed(case, asked.precision, []), exact)}
    if asked.lines:
        columns["kept"] = off(passed(case, asked.precision, asked.lines), exact)
    print(f"{'relative error':40}" + "".join(f"{name:>12}" for name in columns))
    worst = sorted(exact, key=lambda name: -torch.nan_to_num(torch.tensor(columns[asked.precision].get(name, 0.0)), nan=1e30).item())
    for name in dict.fromkeys([*[n for n in exact if not n.startswith("gradient")], *worst[: asked.most]]):
        print(f"{name[-40:]:40}" + "".join(f"{column.get(name, float('nan')):12.2g}" for column in columns.values()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
