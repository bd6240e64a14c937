"""The disturbance of a noise run. It shows what correct rounding alone would do to this model on this data.

It is a Monte Carlo run in float32. Each tensor that the low run stores in its format is multiplied by 1 + U(-a u, a u): weights, inputs, module
outputs and their gradients. a = 0.725 gives the root mean square of one rounding to nearest, 0.42 u (measured 0.378 to 0.430; 0.392 for
log-uniform mantissas). Noise is added at boundaries only, where a good implementation rounds. Noise inside a module would excuse its bugs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy
import torch

from precheck.formats import FP16, ONE_ROUNDING, Format
from precheck.observe.shadow.comparing.numpy_views import ROOM, lent_and_seen, scratch
from precheck.observe.shadow.memory.storages import Storages
from precheck.observe.shadow.replaying.replay import addressable
from precheck.recipes import Recipe
from precheck.torch_internals import in_backward, no_class_code, no_dispatch, version
from precheck.torch_support.dense_parts import with_values

_UNIFORM = ONE_ROUNDING * math.sqrt(3)  # half-width of the uniform distribution with that root mean square
_DRAWN = 1 << 15  # 64-bit draws at a time, which fit in the cache


@dataclasses.dataclass(slots=True)
class Noise:
    """Multiplicative noise of the size of `roundoff` on the outputs in `rounded` (record key: number of roundings).
    `parameters` are the names of disturbed parameters (None: all). `inputs`: inputs are disturbed when they come in, since they are stored low. Else
    `read` disturbs them where the run reads a cast. `chained`: an output with n roundings inside its module gets the noise of n roundings,
    added in quadrature, but no more than the run's error amounts to there (`shown`, by record key). `everywhere`: each op's result that the run
    stored low is disturbed, inside modules too. `gemm` adds noise to the operands of matrix products. `bottom` is a format whose underflow is
    modelled too. Gradients reach it at their value times the loss `scale`. Of weights and inputs only the subnormal ones are: one that becomes zero
    is lost.
    """

    seed: int
    roundoff: float
    rounded: Mapping[str, int]
    parameters: frozenset[str] | None = None
    inputs: bool = False
    chained: bool = False
    shown: Mapping[str, float] = dataclasses.field(default_factory=dict)
    everywhere: bool = False
    gemm: Format | Recipe | None = None
    bottom: Format | None = None
    scale: float = 1.0
    _copies: Storages[tuple[int, torch.Tensor]] = dataclasses.field(default_factory=Storages)  # disturbed ones of what is read as a cast, by version
    _generators: dict[str, torch.Generator] = dataclasses.field(default_factory=dict)
    _shifts: dict[torch.Generator, tuple[torch.Tensor, torch.Tensor]] = dataclasses.field(default_factory=dict)  # 64 bits, the first 8

    def parameter(self, name: str, value: torch.Tensor) -> torch.Tensor:
        return self._disturbed(value) if self.parameters is None or name in self.parameters else value

    def input(self, value: torch.Tensor) -> torch.Tensor:
        if not self.inputs or isinstance(value, torch.nn.Parameter):
            return value
        if not addressable(value):
            return with_values(value, self.input)
        if not value.is_complex() and _whole(value):
            return value
        return self._disturbed(value).detach().requires_grad_(value.requires_grad)

    def read(self, value: torch.Tensor) -> torch.Tensor:
        """A disturbed copy of an input, for ops that read its cast. All of them get the same copy, so that each element is rounded once."""
        if self.inputs or not value.is_floating_point() or not addressable(value):
            return value
        with no_dispatch():
            known = self._copies.get(value)
            if known is None or known[0] != version(value):
                flat = torch.empty(0, dtype=value.dtype, device=value.device).set_(value.untyped_storage())
                known = version(value), flat if _whole(flat) else self._disturbed(flat)
                self._copies.put(value, known)
            return known[1].as_strided(value.size(), value.stride(), value.storage_offset())

    def output(self, key: str, tensor: torch.Tensor) -> None:
        if key in self.rounded and not _exempt(tensor):
            with no_dispatch():
                # .data: autograd must not see this as a modification of a saved tensor
                self._disturb(tensor.data, min(self._roundings(key), self.shown.get(key, math.inf)))

    def result(self, tensor: torch.Tensor) -> None:
        """Adds the noise of one rounding to an op's new result, in place."""
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
        from precheck.formats import TF32
        from precheck.recipes.products import RecipeProducts
        from precheck.torch_support.emulation import GemmInputs

        fmt = self.gemm
        if isinstance(fmt, Recipe):
            return RecipeProducts(fmt, noise=self.seed)
        return GemmInputs(lambda operand: self._disturbed(operand, roundoff=fmt.unit_roundoff), dense_only=fmt is not TF32)

    def _roundings(self, key: str) -> int:
        return self.rounded[key] if self.chained else 1

    def _disturbed(self, value: torch.Tensor, *, roundoff: float | None = None) -> torch.Tensor:
        """A copy with the relative noise of one rounding."""
        if not value.is_floating_point():
            return value
        if not addressable(value):
            return with_values(value, lambda values: self._disturbed(values, roundoff=roundoff))
        with no_dispatch():
            with no_class_code():  # a product of the user's class may be a rotation, say
                disturbed = torch.mul(value, self._draws(value, _UNIFORM * (self.roundoff if roundoff is None else roundoff)))
                if self.bottom is not None and roundoff is None and not value.is_complex():
                    settled = disturbed.clone()
                    _settle(settled, self.bottom, 1.0)
                    disturbed = torch.where(settled == 0, disturbed, settled)  # a weight that becomes zero is lost, not rounded
            return disturbed if type(value) in (torch.Tensor, torch.nn.Parameter) else value.clone().copy_(disturbed)

    def _disturb(self, value: torch.Tensor, roundings: float, *, scale: float = 1.0) -> None:
        """Adds relative noise of that many roundings in place, and models underflow."""
        if self.chained and not value.is_complex():
            shift = self._shift(value)
            if _few(value):
                _round_few(value, self.roundoff, shift, math.sqrt(roundings), self.bottom, scale)
                return
            error = _rounded(value, self.roundoff, shift=shift).sub_(value)
            value.add_(error.nan_to_num_(nan=0.0).mul_(math.sqrt(roundings)))  # NaN comes from Inf - Inf: masks stay
        else:
            value.mul_(self._draws(value, _UNIFORM * self.roundoff * math.sqrt(roundings)))
        if self.bottom is not None and not value.is_complex():
            _settle(value, self.bottom, scale)

    def _shift(self, like: torch.Tensor) -> float:
        """The same as one of `_draws`, in fewer calls."""
        generator = self._generator(like)
        if generator not in self._shifts:
            with torch.inference_mode(False):  # it is written to outside a block of inference mode, too
                bits = torch.empty(1, dtype=torch.int64, device=like.device)
                self._shifts[generator] = bits, bits.view(torch.int8)[0]
        bits, byte = self._shifts[generator]
        bits.random_(-(2**63), None, generator=generator)
        return int(byte) * 2.0**-7 + 2.0**-8

    def _generator(self, like: torch.Tensor) -> torch.Generator:
        device = like.device.type
        if device not in self._generators:
            self._generators[device] = torch.Generator(like.device).manual_seed(self.seed)
        return self._generators[device]

    def _draws(self, like: torch.Tensor, within: float) -> torch.Tensor:
        """U(1 - within, 1 + within) in 2^8 steps, from this run's own generator, so that the model's random numbers do not change.
        Each draw of 64 bits gives eight numbers, since one draw for each would cost as much as the run. The mean square is that of the
        continuous distribution, less a 65 536th.
        """
        generator = self._generator(like)
        real = torch.float64 if like.dtype in (torch.float64, torch.complex128) else torch.float32
        drawn = torch.empty(like.shape, dtype=real, device=like.device)
        bits = torch.empty(min(_DRAWN, -(-drawn.numel() // 8)), dtype=torch.int64, device=like.device)
        for part in drawn.view(-1).split(8 * _DRAWN):
            few = bits[: -(-part.numel() // 8)].random_(-(2**63), None, generator=generator)
            part.copy_(few.view(torch.int8)[: part.numel()]).mul_(within * 2.0**-7).add_(1.0 + within * 2.0**-8)
        return drawn


def _rounded(value: torch.Tensor, roundoff: float, *, shift: float) -> torch.Tensor:
    """`value` rounded to nearest on a grid with that unit roundoff. The grid is shifted by a random factor of up to 2.
    Unlike independent noise, this gives equal values equal errors and similar values similar ones, as rounding does. So a mean over thousands of
    nearly equal rows does not average the errors out.
    """
    scaled = value * 2.0**shift
    splitter = 2 * roundoff / torch.finfo(value.dtype).eps + 1  # Veltkamp's splitting keeps the leading bits
    split = scaled * splitter
    nearest = (split - (split - scaled)).div_(2.0**shift)
    fits = value.abs() < torch.finfo(value.dtype).max / (4 * splitter)  # fills of masks, -Inf or numbers near it, stay
    return torch.where(fits, nearest, value)


def _few(value: torch.Tensor) -> bool:
    """Whether it is a float32 tensor of a CPU for which numpy's calls take less time than torch's. Not a gradient that is differentiated again."""
    plain = value.is_cpu and value.dtype is torch.float32 and not value.is_neg() and not value.requires_grad
    return plain and 0 < value.numel() <= ROOM


@numpy.errstate(all="ignore")
def _round_few(value: torch.Tensor, roundoff: float, shift: float, times: float, bottom: Format | None, scale: float) -> None:
    """Adds the error of `_rounded`, so many `times`, to few numbers in place, and does what `_settle` does. It gives the same bits."""
    kind = numpy.float32
    splitter, spread = kind(2 * roundoff / torch.finfo(torch.float32).eps + 1), kind(2.0**shift)
    room, numbers = lent_and_seen(value, torch.float32, "noise")
    scaled = numpy.multiply(numbers, spread, out=scratch(numbers, "scaled"))
    split = numpy.multiply(scaled, splitter, out=scratch(numbers, "split"))
    numpy.subtract(split, scaled, out=scaled)
    error = numpy.subtract(split, scaled, out=split)
    error /= spread
    error -= numbers
    size = numpy.abs(numbers, out=scaled)
    beyond = ~(size < kind(torch.finfo(torch.float32).max / (4 * float(splitter))))
    if beyond.any():
        error[beyond] = 0.0
    error *= kind(times)
    numbers += error
    if bottom is FP16:
        step = kind(bottom.min_subnormal / scale)
        small = numpy.abs(numbers, out=scaled) < kind(bottom.min_normal / scale)
        numbers[small] = numpy.rint(numbers[small] / step) * step
    elif bottom is not None:
        numbers[numpy.abs(numbers, out=scaled) < kind(bottom.min_normal / scale)] = 0.0
    value.copy_(room)


def _settle(value: torch.Tensor, fmt: Format, scale: float) -> None:
    """Models underflow in place: magnitudes below the smallest normal number are rounded to subnormals of float16. In other formats they become zero,
    as hardware may do."""
    small = value.abs() < fmt.min_normal / scale
    if fmt is FP16:
        step = fmt.min_subnormal / scale
        value.copy_(torch.where(small, (value / step).round() * step, value))
    else:
        value.masked_fill_(small, 0.0)


def _exempt(tensor: torch.Tensor) -> bool:
    """Whether a tensor gets no noise: expanded tensors, and whole numbers (positions, counts, one-hot rows) and codes, which are not rounded."""
    return tensor.is_quantized or _overlaps_itself(tensor) or (not tensor.is_complex() and _whole(tensor))


def _whole(tensor: torch.Tensor) -> bool:
    with no_dispatch():
        values = tensor.detach().reshape(-1)
        return all(each % 1 == 0 for each in values[:4].tolist()) and bool((values % 1 == 0).all())  # the first four decide for most tensors


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether it is an expanded tensor. One element in its storage stands for many, and was rounded once when it was made."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
