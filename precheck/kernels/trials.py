"""Defines one trial of a kernel (sizes, kind of numbers, memory layout), and makes its inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from precheck import formats
from precheck.kernels import contents, memory, number_kinds
from precheck.kernels.dimensions import Dimensions
from precheck.kernels.examples import Example


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """How the inputs differ from the example. A trial that is `given` has the example's own numbers."""

    sizes: tuple[tuple[str, int], ...] = ()
    family: str = "plain"
    leaf: int = -1  # the leaf that gets a NaN or Inf, or numbers at a threshold, or scaled ones
    layout: str = "contiguous"
    laid: int = -1  # the only leaf with the layout; -1: all
    upstream: str = "random"
    only: int | None = None  # the only leaf that requires a gradient
    seed: int = 0
    given: bool = False
    number: float = 0.0  # the threshold, or the factor of all numbers
    fill: str = "NaN"  # the contents of memory that the candidate allocates: "NaN", "zero", or "" for unchanged

    def but(self, **changes: object) -> Trial:
        """A copy of the trial with some changes."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


@dataclasses.dataclass(slots=True, eq=False)
class Made:
    """The inputs of a trial, contiguous, in the example's formats, and the new values of Python integers that depend on its sizes."""

    values: list[torch.Tensor]
    numbers: dict[int, int]


def trial_inputs(example: Example, dimensions: Dimensions, trial: Trial, *, linked: bool = False, signs: bool = False) -> Made:
    """The inputs of a trial. `linked`: Python integers that are a size change with it. `signs`: numbers of one sign keep it, however few."""
    sizes = dict(trial.sizes)
    numbers = {old: new for old, new in dimensions.numbers(sizes).items() if old != new} if linked else {}
    if trial.given:
        return Made([_given(leaf.tensor, trial, place) for place, leaf in enumerate(example.leaves)], {})
    values = []
    for place in range(len(example.leaves)):
        generator = torch.Generator().manual_seed(trial.seed * 7919 + place)
        values.append(_value(example, dimensions, trial, place, generator, signs))
    if trial.layout == "expanded":
        values = [each[:1].expand(each.shape).contiguous() if _has(trial, place) and memory.fits(each, "expanded") else each
                  for place, each in enumerate(values)]  # fmt: skip
    return Made(values, numbers)


def _given(tensor: torch.Tensor, trial: Trial, place: int) -> torch.Tensor:
    """The example's own numbers, with Inf or NaN where the trial has one."""
    if trial.leaf != place:
        return tensor.cpu().clone(memory_format=torch.contiguous_format)
    generator = torch.Generator().manual_seed(trial.seed)
    change = number_kinds.FAMILIES[trial.family]
    return change(tensor.cpu().double().contiguous(), generator, formats.of_dtype(tensor.dtype)).to(tensor.dtype)


def _value(example: Example, dimensions: Dimensions, trial: Trial, place: int, generator: torch.Generator, signs: bool) -> torch.Tensor:
    tensor, sizes = contents.sampled(example.leaves[place].tensor), dict(trial.sizes)
    drawn, limits = contents.like(tensor.detach().cpu(), dimensions.shape(place, sizes), generator, bounds(dimensions, sizes, tensor))
    if trial.family == "all alike":
        drawn = contents.alike(tensor.detach().cpu(), drawn)
    if drawn.is_floating_point():
        fmt = formats.of_dtype(tensor.dtype)
        special = trial.family in number_kinds.SPECIAL
        if trial.family in number_kinds.AT_THRESHOLDS:
            drawn = _at_threshold(drawn, limits, trial, generator, fmt) if trial.leaf == place else drawn
            limits = None
        if trial.family == "ends" and contents.unit(tensor):
            drawn, limits = contents.to_ends(drawn, contents.chances(tensor), generator), None
        if trial.family == "scaled":
            drawn = drawn * trial.number if trial.leaf == place and limits == contents.FREE else drawn
            limits = None
        if limits is not None and not special and (limits == contents.FREE or trial.family in number_kinds.WITHIN):
            drawn = number_kinds.FAMILIES[trial.family](drawn, generator, fmt)
            drawn = drawn if trial.family == "small" else drawn.clamp(*limits)  # the least of a few numbers says nothing of smaller ones
            drawn = -drawn if trial.family == number_kinds.OPPOSED and trial.leaf == place else drawn
        if trial.family in number_kinds.EQUAL and contents.chances(tensor):
            drawn = number_kinds.FAMILIES[trial.family](drawn.log(), generator, fmt).softmax(-1)
        if contents.shares(tensor):
            drawn = drawn.log_softmax(-1)
        elif signs and (sign := contents.one_sign(tensor, 2)):
            drawn = sign * drawn.abs()
        if trial.family == "rows twice" and (limits is not None or contents.chances(tensor) or contents.boxes(tensor)) and drawn.dim():
            drawn = drawn[torch.arange(len(drawn)) % -(-len(drawn) // 2)]
        if special and trial.leaf == place:
            part = _behind(drawn, dimensions.shapes[place], sizes)
            part.copy_(number_kinds.FAMILIES[trial.family](part, generator, fmt))
        if trial.family not in ("Inf", "-Inf"):
            drawn = torch.where(drawn.isfinite(), drawn.clamp(-fmt.max / 2, fmt.max / 2), drawn)
    return drawn.to(tensor.dtype)


def _behind(drawn: torch.Tensor, names: Sequence[object], sizes: dict[str, int]) -> torch.Tensor:
    """The part of an input that lies in the second half of each size of the trial: behind tiles, if that is one less than two of them."""
    for axis, name in enumerate(names):
        if (size := sizes.get(str(name), 0)) > 1:
            drawn = drawn.narrow(axis, (size + 1) // 2, size // 2)
    return drawn


def _at_threshold(drawn: torch.Tensor, limits: contents.Limits, trial: Trial, generator: torch.Generator, fmt: formats.Format) -> torch.Tensor:
    """The numbers with some at a threshold, if the example's numbers may be there."""
    if limits is None or not limits[0] <= trial.number <= limits[1]:
        return drawn
    if trial.family == "only zeros":
        return torch.zeros_like(drawn)
    if trial.family == "threshold itself":
        return number_kinds.upon(drawn, trial.number, generator).clamp(*limits)
    return number_kinds.beside(drawn, trial.number, generator, fmt).clamp(*limits)


def bounds(dimensions: Dimensions, sizes: dict[str, int], tensor: torch.Tensor) -> contents.Bounds:
    """Bounds for integers: they stay below the length of the dimension that they index, if that has shrunk."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool or tensor.numel() == 0:
        return contents.Bounds()
    most = int(tensor.max())
    shrunk = [(new, old) for name, new in sizes.items() if most <= (old := dimensions.old(name)) and new < old]
    limits = [new - 1 if old > most else new for new, old in shrunk]
    return contents.Bounds(max(min(limits), 0) if limits else None, dimensions.numbers({**dimensions.sizes, **sizes}))


def buffers(example: Example, values: Sequence[torch.Tensor], trial: Trial) -> list[memory.Buffer]:
    """The inputs in the layout of the trial, in guarded storages on their devices."""
    values = example.placed(values)
    layouts = (trial.layout if _has(trial, place) and memory.fits(each, trial.layout) else "contiguous" for place, each in enumerate(values))
    return [memory.laid(each, layout) for each, layout in zip(values, layouts, strict=True)]


def _has(trial: Trial, place: int) -> bool:
    return trial.laid in (-1, place)
