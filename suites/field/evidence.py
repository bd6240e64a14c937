"""`python suites/field/evidence.py CASE PRECISION FILE.py:LINE …`: what float64 says of a case, and what keeping a line in float32 changes.

One forward and backward pass in float64, float32 and the precision, of the same weights, inputs and random numbers, without precheck. Then two
passes more: in one, what the first line calls is computed in float32; in the other, all that its function calls. Each error is relative to the
Euclidean norm in float64: of the values that each line makes, of outputs, loss and gradients.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from types import FrameType
from typing import Any

import numpy as np
import torch
from fieldcase import Case, loaded
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from trained import AUTOCAST, cast

from precheck.torch_support.autocast import cuda_policy_on_cpu

Left = dict[str, torch.Tensor]
SCALE = 2.0**10
"""Of the loss in float16. Gradients are divided by it."""
LOW = (torch.bfloat16, torch.float16)


def _frames() -> list[FrameType]:
    """Of the code that calls torch, innermost first."""
    frame, found = sys._getframe(2), []
    while frame is not None:
        if "/torch/" not in frame.f_code.co_filename and frame.f_code.co_filename != __file__:
            found.append(frame)
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _at(line: str) -> Callable[[FrameType], bool]:
    name, _, number = line.rpartition(":")
    return lambda frame: frame.f_lineno == int(number) and frame.f_code.co_filename.endswith(name)


def _in_function(line: str) -> Callable[[FrameType], bool]:
    name, _, number = line.rpartition(":")

    def inside(frame: FrameType) -> bool:
        code = frame.f_code
        lines = [each for _, _, each in code.co_lines() if each]
        return code.co_name != "<module>" and code.co_filename.endswith(name) and min(lines) <= int(number) <= max(lines)

    return inside


class Kept(TorchFunctionMode):
    """Computes in float32 what is called from some frames."""

    def __init__(self, chosen: Callable[[FrameType], bool]) -> None:
        self.chosen = chosen
        super().__init__()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(self.chosen(frame) for frame in _frames()):
            try:
                return function(*args, **kwargs)
            except RuntimeError as error:  # float32 meets weights that are stored low
                if "type" not in str(error) and "primitive descriptor" not in str(error):  # the second is what oneDNN's LSTM says
                    raise
                args, kwargs = tree_map(lambda value: _as(value, (torch.float32,), torch.bfloat16), (args, kwargs))
                return function(*args, **kwargs)
        if not _writes(function) and getattr(function, "__name__", "") != "__get__":  # a copy in float32 would be written to, as in `.data.normal_()`
            args, kwargs = tree_map(lambda value: _as(value, LOW, torch.float32), (args, kwargs))
        with torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)


def _writes(function: Any) -> bool:
    """Whether a function writes to the tensor that it is given."""
    name = getattr(function, "__name__", "")
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _as(value: Any, of: tuple[torch.dtype, ...], dtype: torch.dtype) -> Any:
    if isinstance(value, torch.dtype):
        return dtype if value in of else value
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype in of else value


class Written(TorchFunctionMode):
    """Keeps copies of what some lines make."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = {line: _at(line) for line in lines}
        self.values: dict[str, list[torch.Tensor]] = {line: [] for line in lines}
        super().__init__()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        frames = _frames()
        for line, here in self.lines.items():
            if frames and here(frames[0]):
                self.values[line] += [
                    leaf.detach().double() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
                ]
        return out


class SameNumbers(TorchFunctionMode):
    """Random numbers are those that float32 draws, in every precision and whatever the strides."""

    DRAWS = ("randn", "rand", "randn_like", "rand_like", "normal_", "uniform_", "normal", "exponential_", "dropout", "orthogonal_", "bernoulli")

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(function, "__name__", ""), dict(kwargs or {})
        if name not in self.DRAWS:
            return function(*args, **kwargs)
        if _writes(function):
            return args[0].copy_(function(args[0].float().clone(memory_format=torch.contiguous_format), *args[1:], **kwargs))
        given = [leaf.dtype for leaf in tree_leaves((kwargs, args)) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
        dtype = kwargs.get("dtype") or (given or [torch.get_default_dtype()])[0]
        args, kwargs = tree_map(lambda value: _as(value, (*LOW, torch.float64), torch.float32), (args, kwargs))
        args = tuple(value.contiguous() if isinstance(value, torch.Tensor) else value for value in args)
        if name in ("randn", "rand"):
            kwargs["dtype"] = torch.float32
        return function(*args, **kwargs).to(torch.float64 if torch.get_default_dtype() is torch.float64 else dtype)


def passed(case: Case, precision: str, lines: list[str], kept: Callable[[FrameType], bool] | None = None, *, given: bool = False) -> Left:
    """What one pass leaves, in float64. `given`: weights and inputs are those that bfloat16 holds, in every precision."""
    made = case.made()
    if given:
        made = dataclasses.replace(made, model=made.model.to(torch.bfloat16), inputs=cast(made.inputs, torch.bfloat16))
    dtype = {"64-true": torch.float64, "bf16-true": torch.bfloat16}.get(precision, torch.float32)
    model, inputs = made.model.train().to(dtype), cast(made.inputs, dtype)
    low, scale, default = AUTOCAST.get(precision), SCALE if precision == "16-mixed" else 1.0, torch.get_default_dtype()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    written = Written(lines)
    torch.set_default_dtype(torch.float64 if precision == "64-true" else default)
    try:
        with ExitStack() as around:
            for mode in (SameNumbers(), written, Kept(kept) if kept else None):
                if mode:
                    around.enter_context(mode)
            if low:
                around.enter_context(torch.autocast("cpu", dtype=low))
            out = model(*inputs)
            loss = made.loss(out)
        if loss.requires_grad:
            (loss * scale).backward()
    finally:
        torch.set_default_dtype(default)
    values = {f"line {line}, call {number}": value for line, some in written.values.items() for number, value in enumerate(some)}
    leaves = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    left = values | {f"output {number}": leaf.detach().double() for number, leaf in enumerate(leaves)} | {"loss": loss.detach().double()}
    return left | {f"gradient {name}": value.grad.double() / scale for name, value in model.named_parameters() if value.grad is not None}


def off(one: Left, exact: Left) -> dict[str, float]:
    """How far each tensor is off, relative to its norm. NaN where a number is not finite, or where the passes made other numbers of values."""
    return {
        name: float((one[name] - exact[name]).norm() / exact[name].norm().clamp_min(1e-300)) if one[name].shape == exact[name].shape else float("nan")
        for name in exact
        if name in one
    }


def _by_line(errors: dict[str, float]) -> dict[str, float]:
    """Of the calls of each line, the one that is farthest off."""
    found: dict[str, float] = {}
    for name, error in errors.items():
        short = name.partition(", call ")[0]
        found[short] = error if short not in found or not error <= found[short] else found[short]
    return found


def evidence(case: Case, precision: str, lines: list[str], files: list[str], *, given: bool = False) -> dict[str, dict[str, float]]:
    """Columns of errors beside float64."""
    exact = passed(case, "64-true", lines, given=given)
    columns = {each: off(passed(case, each, lines, given=given), exact) for each in ("32-true", precision)}
    kept = {"line kept": _at(lines[0]), "function kept": _in_function(lines[0])} if lines else {}
    if files:
        kept["files kept"] = lambda frame: frame.f_code.co_filename.endswith(tuple(files))
    for name, chosen in kept.items():
        try:
            columns[name] = off(passed(case, precision, lines, chosen, given=given), exact)
        except Exception as error:
            columns[f"{name}: {error}".splitlines()[0][:80]] = {}
    return {head: _by_line(column) for head, column in columns.items()}


def steps(case: Case, dtype: torch.dtype, count: int) -> Left:
    """How far each weight moves in so many steps of the case's optimizer, in float64."""
    made = case.made()
    assert made.optimizer is not None
    model, inputs = made.model.to(dtype), cast(made.inputs, dtype)
    before = {name: value.detach().double().clone() for name, value in model.named_parameters()}
    optimizer = made.optimizer([value for value in model.parameters() if value.requires_grad])
    for _ in range(count):
        optimizer.zero_grad()
        made.loss(model(*inputs)).backward()
        optimizer.step()
    return {name: value.detach().double() - before[name] for name, value in model.named_parameters()}


def arrived(case: Case, count: int = 3) -> dict[str, tuple[float, float]]:
    """By weight: the share of float64's move that bfloat16's covers, and the share of elements that move."""
    exact, low = steps(case, torch.float64, count), steps(case, torch.bfloat16, count)
    return {
        name: (float((low[name] * moved).sum() / moved.square().sum().clamp_min(1e-300)), float((low[name] != 0).double().mean()))
        for name, moved in exact.items()
    }


def rows(columns: dict[str, dict[str, float]], most: int) -> list[str]:
    """Lines, outputs and the loss; then the gradients that are farthest off."""
    exact, low = list(columns.values())[:2]
    gradients = sorted((name for name in exact if name.startswith("gradient")), key=lambda name: -float(torch.tensor(low[name]).nan_to_num(1e30)))
    return [*(name for name in exact if not name.startswith("gradient")), *gradients[:most]]


def main() -> int:
    """Prints a row for each tensor."""
    parser = argparse.ArgumentParser(prog="python suites/field/evidence.py", description=__doc__)
    parser.add_argument("case")
    parser.add_argument("precision")
    parser.add_argument("lines", nargs="*", help="the first is kept in float32")
    parser.add_argument("--files", nargs="*", default=[], help="all that these files call is kept in float32 in one pass more")
    parser.add_argument("--most", type=int, default=4, help="gradients that are shown")
    parser.add_argument("--cuda", action="store_true", help="autocast follows CUDA's list of ops, as in `measure`")
    parser.add_argument("--moved", type=int, nargs="?", const=3, help="what arrives in bfloat16 weights of so many steps of the case's optimizer")
    parser.add_argument("--given", action="store_true", help="weights and inputs are those that bfloat16 holds, in float64 too")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.nn.RNNBase.check_input = lambda *given: None  # type: ignore[method-assign]  # weights that are stored low meet what is kept in float32
    if asked.moved:
        for name, (share, some) in arrived(loaded()[asked.case], asked.moved).items():
            print(f"{name:30} {share:7.0%} of float64's move arrives, {some:.0%} of the elements move")
        return 0
    with cuda_policy_on_cpu() if asked.cuda else nullcontext():
        columns = evidence(loaded()[asked.case], asked.precision, asked.lines, asked.files, given=asked.given)
    names = rows(columns, asked.most)
    if asked.json:
        print("JSON" + json.dumps({head: {name: column.get(name) for name in names} for head, column in columns.items()}))
        return 0
    print(f"{'relative error':50}" + "".join(f"{name:>14}" for name in columns))
    for name in names:
        print(f"{name[-50:]:50}" + "".join(f"{column.get(name, float('nan')):14.2g}" for column in columns.values()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
