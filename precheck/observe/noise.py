"""The disturbance of a noise run: what correct rounding alone would do to this model on this data.

Boundary Monte-Carlo: a float32 run in which every tensor that the low-precision run stores in its format is multiplied by 1 + U(-a u, a u). These
are weights, inputs, module outputs and the gradients that come back for them. a = 0.725 gives the root mean square of one rounding to nearest, 0.42
u (measured 0.378 to 0.430; 0.392 for log-uniform mantissas). Noise enters at boundaries only, where a good implementation rounds; inside a module
it would excuse the very bugs that are looked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from precheck.contents import composed, with_values
from precheck.formats import FP16, Format
from precheck.recipes import Recipe
from precheck.torch_internals import address, in_backward, no_dispatch, version

ONE_ROUNDING = 0.42
"""Root mean square error of one rounding to nearest, in unit roundoffs, relative to the Euclidean norm."""
_UNIFORM = ONE_ROUNDING * math.sqrt(3)  # half-width of the uniform distribution with that root mean square
_DRAWN = 1 << 15  # 64-bit draws at a time, which stay in the cache


@dataclasses.dataclass(frozen=True, slots=True)
class _Twin:
    """A storage's content, disturbed: of which storage, as often as that had been written."""

    owner: StorageWeakRef
    written: int
    flat: torch.Tensor


@dataclasses.dataclass(slots=True)
class Noise:
    """Multiplicative noise of `roundoff` at the places that `rounded` names (record key of an output: roundings).

    `parameters` are the names disturbed (None: all). `inputs` are disturbed as they come in, where they are stored low; else by `read`, where the
    run reads them cast. With `chained`, an output that took n roundings inside its module gets
    n roundings' worth: each of unit gain, they add up in quadrature. With `everywhere`, every op's result that the run stored
    low is disturbed, inside modules too. `gemm` adds noise to the operands of matrix products. `bottom` is the format
    whose lower end is modelled too; gradients reach it at their value times the loss `scale`.
    """

    seed: int
    roundoff: float
    rounded: Mapping[str, int]
    parameters: frozenset[str] | None = None
    inputs: bool = False
    chained: bool = False
    everywhere: bool = False
    gemm: Format | Recipe | None = None
    bottom: Format | None = None
    scale: float = 1.0
    _twins: dict[int, _Twin] = dataclasses.field(default_factory=dict)  # of storages that were read cast
    _generators: dict[str, torch.Generator] = dataclasses.field(default_factory=dict)

    def parameter(self, name: str, value: torch.Tensor) -> torch.Tensor:
        return self._disturbed(value) if self.parameters is None or name in self.parameters else value

    def input(self, value: torch.Tensor) -> torch.Tensor:
        if not self.inputs or isinstance(value, torch.nn.Parameter):
            return value
        if value.layout is not torch.strided or composed(value):
            return with_values(value, self.input)
        if not value.is_complex() and _whole(value):
            return value
        return self._disturbed(value).detach().requires_grad_(value.requires_grad)

    def read(self, value: torch.Tensor) -> torch.Tensor:
        """An input as whoever reads its cast has it: each element is rounded once, whoever reads it, and is as it was for who reads it uncast."""
        if self.inputs or not value.is_floating_point() or value.layout is not torch.strided or composed(value):
            return value
        with no_dispatch():
            storage = value.untyped_storage()
            known = self._twins.get(address(storage))
            if known is None or known.owner.expired() or known.written != version(value):
                flat = torch.empty(0, dtype=value.dtype, device=value.device).set_(storage)
                disturbed = flat if _whole(flat) else self._disturbed(flat)
                known = self._twins[address(storage)] = _Twin(StorageWeakRef(storage), version(value), disturbed)
            return known.flat.as_strided(value.size(), value.stride(), value.storage_offset())

    def output(self, key: str, tensor: torch.Tensor) -> None:
        if key in self.rounded and not _exempt(tensor):
            with no_dispatch():
                # .data: autograd must not take the rounding of a saved result for a modification of it
                self._disturb(tensor.data, self._roundings(key))

    def result(self, tensor: torch.Tensor) -> None:
        """One rounding's worth on an op's fresh result, in place."""
        if not _exempt(tensor):
            self._disturb(tensor, 1, scale=self.scale if in_backward() else 1.0)

    def gradient(self, key: str, gradient: torch.Tensor) -> torch.Tensor:
        if key not in self.rounded:
            return gradient
        with no_dispatch():
            disturbed = gradient.clone()
            self._disturb(disturbed, self._roundings(key), scale=self.scale)
            return disturbed

    def products(self) -> contextlib.AbstractContextManager[Any]:
        if self.gemm is None:
            return contextlib.nullcontext()
        from precheck.emulation import GemmInputs
        from precheck.formats import TF32
        from precheck.recipes.products import RecipeProducts

        fmt = self.gemm
        if isinstance(fmt, Recipe):
            return RecipeProducts(fmt, noise=self.seed)
        return GemmInputs(lambda operand: self._disturbed(operand, roundoff=fmt.unit_roundoff), dense_only=fmt is not TF32)

    def _roundings(self, key: str) -> int:
        return self.rounded[key] if self.chained else 1

    def _disturbed(self, value: torch.Tensor, *, roundoff: float | None = None) -> torch.Tensor:
        """A disturbed copy: relative noise of one rounding."""
        if not value.is_floating_point():
            return value
        if value.layout is not torch.strided or composed(value):
            return with_values(value, lambda values: self._disturbed(values, roundoff=roundoff))
        with no_dispatch():
            return value * self._draws(value, about=1.0, within=_UNIFORM * (self.roundoff if roundoff is None else roundoff))

    def _disturb(self, value: torch.Tensor, roundings: int, *, scale: float = 1.0) -> None:
        """In place: relative noise of that many roundings; then what is left of a value that close to zero."""
        if self.chained and not value.is_complex():
            error = _rounded(value, self.roundoff, shift=float(self._draws(value.new_zeros(1)))).sub_(value)
            value.add_(error.nan_to_num_(nan=0.0).mul_(math.sqrt(roundings)))  # Inf - Inf: a mask stays
        else:
            value.mul_(self._draws(value, about=1.0, within=_UNIFORM * self.roundoff * math.sqrt(roundings)))
        if self.bottom is not None and not value.is_complex():
            _settle(value, self.bottom, scale)

    def _draws(self, like: torch.Tensor, *, about: float = 0.0, within: float = 1.0) -> torch.Tensor:
        """U(about - within, about + within) in 2^8 steps, from a generator of this run's own, so that the model's random numbers stay as they are.

        Eight numbers of each draw of 64 bits: a draw for each would cost as much as the run. The steps' mean square is the continuous
        one's less a 65 536th of it.
        """
        device = like.device.type
        if device not in self._generators:
            self._generators[device] = torch.Generator(like.device).manual_seed(self.seed)
        real = torch.float64 if like.dtype in (torch.float64, torch.complex128) else torch.float32
        drawn = torch.empty(like.shape, dtype=real, device=like.device)
        bits = torch.empty(min(_DRAWN, -(-drawn.numel() // 8)), dtype=torch.int64, device=like.device)
        for part in drawn.view(-1).split(8 * _DRAWN):
            few = bits[: -(-part.numel() // 8)].random_(-(2**63), None, generator=self._generators[device])
            part.copy_(few.view(torch.int8)[: part.numel()]).mul_(within * 2.0**-7).add_(about + within * 2.0**-8)
        return drawn


def _rounded(value: torch.Tensor, roundoff: float, *, shift: float) -> torch.Tensor:
    """`value` rounded to nearest on a grid of that unit roundoff, shifted along the logarithm by a random part of an octave.

    Unlike independent noise, equal values get equal errors and similar values similar ones, as they do from rounding. A mean over thousands of
    nearly equal rows averages nothing out.
    """
    scaled = value * 2.0**shift
    splitter = 2 * roundoff / torch.finfo(value.dtype).eps + 1  # Veltkamp's splitting keeps the leading bits
    split = scaled * splitter
    nearest = (split - (split - scaled)).div_(2.0**shift)
    fits = value.abs() < torch.finfo(value.dtype).max / (4 * splitter)  # masks hold -Inf and numbers near it: they stay
    return torch.where(fits, nearest, value)


def _settle(value: torch.Tensor, fmt: Format, scale: float) -> None:
    """In place: magnitudes below the smallest normal become whole steps of float16, and zero elsewhere, as hardware may do."""
    small = value.abs() < fmt.min_normal / scale
    if fmt is FP16:
        step = fmt.min_subnormal / scale
        value.copy_(torch.where(small, (value / step).round() * step, value))
    else:
        value.masked_fill_(small, 0.0)


def _exempt(tensor: torch.Tensor) -> bool:
    """Whole numbers too (positions, counts, one-hot rows): a good implementation does not round them at all."""
    return _overlaps_itself(tensor) or (not tensor.is_complex() and _whole(tensor))


def _whole(tensor: torch.Tensor) -> bool:
    with no_dispatch():
        values = tensor.detach().reshape(-1)
        return all(each % 1 == 0 for each in values[:4].tolist()) and bool((values % 1 == 0).all())  # most are told apart by the first


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """An expanded tensor: one element of storage stands for many, which were rounded once, where they were made."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
