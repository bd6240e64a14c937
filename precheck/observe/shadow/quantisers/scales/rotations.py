"""Follows what was rotated by a Hadamard matrix before it was rounded, up to the product in which the rotation must cancel.

A Hadamard matrix H spreads an outlier over its neighbours, so that rounding costs less. In exact arithmetic it changes no product:
(a H)(b H)ᵀ = n a bᵀ. The tensor before the rotation is kept beside each rotated tensor. Where two rotated operands are multiplied, their product is
compared with that of the tensors before. The two may differ by one factor: a matrix of ones is often divided by its size later.

If only one operand is rotated in a forward pass, nothing is reported. The other one may have been rotated before this run, as weights are when they
are packed, or the model itself may mix its channels. In a backward pass the derivative of the forward product shows it (`function_gradients`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import Flat, Storages, length, whole
from precheck.observe.shadow.quantisers.code_copies import AGREE, distance, factor_between
from precheck.observe.shadow.quantisers.code_notes import Unrotated
from precheck.observe.shadow.quantisers.scales.fast_rotations import FastTransforms, Stages, pairs
from precheck.observe.shadow.replaying.replay import OpCall
from precheck.torch_internals import storage_key, version

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

FACTORS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "_int_mm": (0, 1), "_scaled_mm": (0, 1)}
"""The operands of products, by place."""
KEPT = ops.WHOLE_COPIES | ops.FORMS | ops.CASTS | ops.WHOLE | ops.PLACES | {"abs", "copysign"}
"""Ops after which rotated data is still rotated: copies, roundings, look-ups."""
LARGEST = 1 << 13
"""The most columns of a matrix that is tested."""
SAME_LENGTHS = 1e-2
"""Relative spread of the rows' lengths over what they were: an orthogonal matrix keeps them, in bfloat16 but for a few thousandths."""


@dataclasses.dataclass(slots=True)
class Rotated:
    """Rotated data in a storage, and the same data before the last rotation, before the last two, and so on."""

    data: Flat
    before: list[Flat]
    place: str
    signs: bool = False  # whether nothing but signs has been changed
    rounded: bool = False


class Rotations:
    """Follows the rotated tensors of a run."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self.held: Storages[Rotated] = Storages()
        self.matrices: Storages[tuple[int, bool]] = Storages()  # by version
        self.quantised: Storages[str] = Storages()  # codes and what was dequantised, by the line that rounded
        self.fast = FastTransforms(self)

    def begins(self, base: str, args: tuple[Any, ...]) -> bool:
        """Whether an op rotates something."""
        return pairs(base, args) or (base in FACTORS and any(self._hadamard(args[place]) for place in FACTORS[base]))

    def follow(self, op: OpCall, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> None:
        """After an op: a rotation, a product of rotated tensors, or another op on one."""
        self.fast.follow(op, inputs, result)
        rounded = self._rounded(op.base, inputs, result)
        if rounded is not None:
            self.quantised.put(result, rounded)
        elif op.base in ops.ADDITIONS and self.quantised:
            for line in filter(None, map(self.quantised.get, inputs)):
                self.codes.casts.summed.add(line)
        if op.base in FACTORS:
            left, right = (op.args[place] for place in FACTORS[op.base])
            self._product(op.plan.name, left, right, result)
        elif op.base == "mul" and self._signed(op, result):
            return
        elif self.held:
            self._kept(op.base, inputs, result)

    def _rounded(self, base: str, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> str | None:
        """The line that rounded a result, or what it was dequantised from."""
        tracks = [self.codes.tracks.get(each) for each in (result, *inputs)] if base in ("mul", "div") else [self.codes.tracks.get(result)]
        line = next((track.rounded for track in tracks if track is not None), None)
        return line or (self.quantised.get(inputs[0]) if base in KEPT and inputs else None)

    def _hadamard(self, tensor: torch.Tensor) -> bool:
        """Whether a matrix is a Hadamard matrix, or one of blocks that are, times any number."""
        rows, columns = tensor.shape[-2:]
        if rows != columns or rows % 2 or rows > LARGEST or (tensor.dim() == 3 and len(tensor) > 1 and tensor.stride(0)):
            return False
        if tensor.is_meta or not tensor.is_floating_point():
            return False
        known = self.matrices.get(tensor)
        if known is None or known[0] != version(tensor):
            known = version(tensor), is_hadamard(_matrix(tensor).float())
            self.matrices.put(tensor, known)
        return known[1]

    def _product(self, name: str, left: torch.Tensor, right: torch.Tensor, result: torch.Tensor) -> None:
        """After a product: a rotation, if one operand is a Hadamard matrix, or a product of two rotated tensors."""
        first, second = self.held.get(left), self.held.get(right)
        if (second is None or second.signs) and self._hadamard(right):
            self._rotated(name, left, first, right, result, left=False)
        elif (first is None or first.signs) and self._hadamard(left):
            self._rotated(name, right, second, left, result, left=True)
        else:
            if first is not None and second is not None:
                self._met(name, first, left, second, right)
            self.held.drop(result)

    def _rotated(self, name: str, source: torch.Tensor, held: Rotated | None, hadamard: torch.Tensor, result: torch.Tensor, *, left: bool) -> None:
        """`source` is multiplied by a Hadamard matrix: it is rotated for the first time, once more, or back."""
        before = [] if held is None else [each.seen(source) for each in held.before]
        place = self.codes.described(name)
        if held is None or (held.signs and not held.rounded):
            before = before or [source]
        else:
            data = held.data.seen(source)
            if held.rounded:
                if _alike(_by(data, hadamard, left), before):
                    self.held.drop(result)
                    return
                if _alike(_by(data, hadamard.transpose(-2, -1), left), before):
                    self.codes.note(place, Unrotated(held.place, "", _distance(_by(data, hadamard, left), before[-1])))
                    self.held.drop(result)
                    return
            before = [data, *before]
        made = _by(source if held is None else held.data.seen(source), hadamard, left)
        rounded, flats = held is not None and held.rounded, [Flat.of(result, each) for each in before]
        self.held.put(result, Rotated(Flat.of(result, made), flats, place.blamed, rounded=rounded))

    def transformed(self, entry: Stages, result: torch.Tensor) -> None:
        """A fast transform has rotated the tensor `result`."""
        held, made, moved = entry.held, entry.made.numbers, [each.numbers for each in entry.moved]
        first = held is None or (held.signs and not held.rounded)
        before = moved[1:] if held is not None and first else moved
        rounded = held is not None and held.rounded
        if rounded and _alike(made, before[1:]):
            self.held.drop(result)
            return
        self.held.put(result, Rotated(Flat(made), [Flat(each) for each in before], entry.place, rounded=rounded))

    def _met(self, name: str, first: Rotated, left: torch.Tensor, second: Rotated, right: torch.Tensor) -> None:
        """A product of two operands that are rotated along the dimension that it sums up."""
        if first.signs or second.signs or not (first.rounded or second.rounded):
            return
        one, other = first.data.seen(left), second.data.seen(right)
        pairs = [(each.seen(left), every.seen(right)) for each in first.before for every in second.before]
        if not all(_keeps_lengths(one, each, -1) and _keeps_lengths(other, every, -2) for each, every in pairs[-1:]):
            return
        exact = one @ other
        off = [_distance(exact, each @ every) for each, every in pairs]
        if min(off) > AGREE:
            self.codes.note(self.codes.described(name), Unrotated(first.place, second.place, off[-1]))

    def _signed(self, op: OpCall, result: torch.Tensor) -> bool:
        """Rows or columns take signs: part of a random Hadamard matrix, which a quantiser's data is multiplied by before or after."""
        left, right = op.args[:2]
        if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor) or left.numel() == right.numel():
            return False
        data, signs = (left, right) if left.numel() > right.numel() else (right, left)
        if data.shape != result.shape or signs.numel() < 2 or not _signs(signs, data):
            return False
        held = self.held.get(data)
        before = [data.detach()] if held is None else [each.seen(data) for each in held.before]
        numbers = (data.detach() if held is None else held.data.seen(data)) * signs
        place = self.codes.described(op.plan.name).blamed if held is None else held.place
        self.held.put(result, Rotated(Flat.of(result, numbers), [Flat.of(result, each) for each in before], place,
                                     held is None or held.signs, held is not None and held.rounded))  # fmt: skip
        return True

    def _kept(self, base: str, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> None:
        """After another op on a rotated tensor: its result is still rotated, or is not followed."""
        read = inputs[1:] if base == "copy" and len(inputs) > 1 else inputs[:1] if base == "copysign" else inputs
        found = [each for each in read if self.held.get(each) is not None]
        if any(storage_key(each) == storage_key(result) for each in found):
            return
        if len(found) != 1 or found[0].shape != result.shape or not whole(result) or not self._same(base, found[0], read):
            self.held.drop(result)
            return
        held = self.held.get(found[0])
        assert held is not None
        rounded = held.rounded or self.codes.tracks.get(result) is not None
        flats = [Flat.of(result, each.seen(found[0])) for each in (held.data, *held.before)]
        self.held.put(result, Rotated(flats[0], flats[1:], held.place, held.signs, rounded))

    def _same(self, base: str, source: torch.Tensor, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether an op leaves rotated data rotated: it copies, rounds, scales or shifts them."""
        other = next((each for each in inputs if each is not source), None)
        if base in KEPT or base.startswith("clamp"):
            return True
        if base in ("mul", "div"):
            fewer = other is None or other.numel() < source.numel() or length(other) < source.numel()
            return fewer or other is None or bool(self.codes.scales.made.get(other)) or _signs(other, source, zeros=True)
        if base in ("add", "sub"):
            return self.codes.scaled.get(source) is not None or self.codes.tracks.get(source) is not None
        return base in ops.MOVING and other is not None and not source.is_floating_point()  # read from a table


def _signs(tensor: torch.Tensor | None, data: torch.Tensor, *, zeros: bool = False) -> bool:
    """Whether real numbers are 1 or -1 throughout, and what they are multiplied by is real too."""
    if tensor is None or not tensor.is_floating_point() or not data.is_floating_point():
        return False
    sizes = tensor.detach().abs()
    return bool(((sizes == 1) | (sizes == 0) if zeros else sizes == 1).all())


def is_hadamard(matrix: torch.Tensor) -> bool:
    """Whether a square matrix has one magnitude beside zeros, several such elements in each row, and orthogonal rows of one length."""
    row = matrix[0].abs()
    size = row.amax()
    if not bool((size > 0) & ((row == size) | (row == 0)).all() & ((row == size).sum() > 1)):
        return False
    places = matrix.abs() == size
    if not bool((places | (matrix == 0)).all()):
        return False
    signs = matrix / size
    gram = signs @ signs.t()
    return bool((gram - gram[0, 0] * torch.eye(len(gram), device=gram.device)).abs().amax() < 0.5)


def _matrix(tensor: torch.Tensor) -> torch.Tensor:
    """The one matrix of a product's operand, which may be repeated for each matrix of a batch."""
    return tensor.detach() if tensor.dim() == 2 else tensor.detach()[0]


def _by(data: torch.Tensor, hadamard: torch.Tensor, left: bool) -> torch.Tensor:
    data, hadamard = data.detach().float(), hadamard.detach().float()
    return hadamard @ data if left else data @ hadamard


def _alike(made: torch.Tensor, before: list[torch.Tensor]) -> bool:
    return any(_distance(made, each) <= AGREE for each in before)


def _distance(made: torch.Tensor, before: torch.Tensor) -> float:
    """|made - c before| / |made|, for the c for which that is least."""
    before = before.float()
    return distance(factor_between(made, before) * before, made)


def _keeps_lengths(rotated: torch.Tensor, before: torch.Tensor, along: int) -> bool:
    """Whether the rotation was along that dimension: it has kept the lengths of all vectors along it, up to one factor."""
    ratio = rotated.norm(dim=along) / before.norm(dim=along).clamp_min(1e-30)
    ratio = ratio[ratio > 0]
    return bool(len(ratio)) and bool(ratio.amax() <= (1 + SAME_LENGTHS) * ratio.amin())
