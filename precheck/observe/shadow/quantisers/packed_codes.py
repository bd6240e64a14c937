"""Follows codes through integers that hold several of them, by giving each bit of a code a label.

The same ops, run on other bits, show where each bit went (`bit_runs`). A run on labels sets each bit of a code to one digit of the code's number, or
of its own place in the code. After as many runs as there are digits, those at a place of a result say which bit lies there, or that no bit of a code
does.

An integer is a code again if its lowest bit is the lowest bit of a code and each other bit is one of the same code in its place, its sign, or a
constant. Where most integers of a tensor are codes and others have the bits of two codes, they were taken out wrongly.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from precheck.observe.shadow.memory.storages import Flat, Storages, flattened, plain
from precheck.observe.shadow.quantisers.bit_origins import BITS, COMPUTED, MOVED, Runs, again
from precheck.observe.shadow.quantisers.code_copies import Track
from precheck.observe.shadow.quantisers.code_notes import MixedCodes
from precheck.observe.shadow.replaying.replay import OpCall, tensors_in

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

DIGITS, PLACES, CHECKS = 20, 3, 8
"""Digits of the number of a code, of a bit's place in it, and of the check behind the number."""
RUNS = DIGITS + PLACES + CHECKS
LAST = (1 << DIGITS) - 1
_PLACED = range(DIGITS, DIGITS + PLACES)
MOSTLY = 0.5
"""Share of integers that are codes, above which the others should be codes too. Most of those then have bits of two codes, if bits were taken out
wrongly. Bits that are no labels look like one in one of 2^CHECKS cases."""


@dataclasses.dataclass(slots=True)
class NumberedCodes:
    """Codes of `width` bits that have the numbers from `first` on, one for each element of a storage. `codes`: what they are."""

    first: int
    width: int
    codes: torch.Tensor
    track: Track


@dataclasses.dataclass(slots=True)
class Labels(Runs):
    """The labels of a storage, a digit a run."""

    resolved: bool = False  # whether it is known which of its integers are codes


class PackedCodes:
    """The integers of a run that hold bits of codes."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self.held: Storages[Labels] = Storages()
        self.books: list[NumberedCodes] = []
        self.next = 1

    def follow(self, op: OpCall, result: torch.Tensor) -> bool:
        """After an op: follows bits of codes. Returns whether it has, so that nothing else is asked of the op."""
        if not self.held and op.base not in BITS:
            return False
        inputs = [each for each in tensors_in(*op.args) if plain(each) and not each.is_floating_point()]
        if op.base in BITS and result.dtype is not torch.bool:
            for each in inputs:
                self._begun(each)
        known = [each for each in inputs if self.held.get(each) is not None] if self.held else []
        wide = result.is_floating_point() or result.dtype is torch.bool
        if known and (wide or op.base not in BITS | MOVED):
            codes = [self.resolved(each) for each in known]
            known = [] if any(codes) else known  # codes again are followed as numbers
        if not known or wide or op.base not in BITS | MOVED | COMPUTED:
            return False
        runs = again(op, result, self.held, RUNS)
        self.codes.tracks.drop(result)
        if runs is None:
            self.held.drop(result)
        else:
            self.held.put(result, Labels(runs))
        return runs is not None

    def _begun(self, tensor: torch.Tensor) -> None:
        """Gives the bits of codes their numbers."""
        track = self.codes.tracks.get(tensor)
        if self.held.get(tensor) is not None or track is None or track.multipliers or track.dense:
            return
        numbers, size = flattened(tensor), 2.0 ** (8 * tensor.element_size())
        low, high = int(numbers.amin()), int(numbers.amax())
        width, count = max(high, -low - 1).bit_length() + (low < 0), len(numbers)
        if not 0 < width <= 8 * tensor.element_size() or count >= LAST:
            return
        if self.next + count > LAST:  # all numbers have been given: what was packed before is followed no longer
            self.held.clear()
            self.books, self.next = [], 1
        turns = torch.round((numbers.float() - torch.nan_to_num(track.exact.numbers)) / size)  # signed numbers may be taken for unsigned ones
        self.books.append(NumberedCodes(self.next, width, numbers.float() - size * turns, track))
        number = torch.arange(self.next, self.next + count, dtype=torch.int32, device=tensor.device)
        self.next, track.read, check = self.next + count, True, _check(number)
        mask = -1 if low < 0 else (1 << width) - 1
        runs = []
        for run in range(RUNS):
            made = -(_digit(number, check, run)) & mask if run not in _PLACED else torch.full_like(number, _place(width, run) & mask)
            runs.append(made.to(tensor.dtype).view(torch.uint8))
        self.held.put(tensor, Labels(runs))

    def resolved(self, tensor: torch.Tensor) -> bool:
        """Whether the integers of a storage are codes, which are followed as such from now on."""
        labels = self.held.get(tensor)
        if labels is not None and not labels.resolved:
            labels.resolved = True
            self._resolve(tensor, labels)
        return self.codes.tracks.get(tensor) is not None

    def _resolve(self, tensor: torch.Tensor, labels: Labels) -> None:
        """Finds which integers are codes again. Notes those that have the bits of two codes."""
        numbers, runs = flattened(tensor), [each.view(tensor.dtype) for each in labels.runs]
        moving = torch.zeros_like(numbers)  # bits that are not the same in all runs
        for each in runs:
            moving |= each ^ runs[0]
        if float((moving & 1).float().mean()) < MOSTLY:  # lowest bits
            return
        if not bool((moving >> 8).any()):  # of one byte alone
            runs = [each.to(torch.uint8) for each in runs]
        lows = [each & 1 for each in runs]
        number, place, found = self._read(lows, moving, 0)
        book, widths = self._book(number), [each.width for each in self.books]
        other, before = torch.zeros_like(runs[0]), None  # bits that do not move as those of the code do
        for run, each in enumerate(runs):
            expected = -lows[run]
            if run in _PLACED:
                expected = torch.tensor([_place(width, run) for width in widths], device=tensor.device)[book].to(each.dtype)
            expected ^= each
            before = expected if before is None else before
            other |= expected ^ before
        code = found & (place == 0) & (other & moving == 0)
        scales = None if bool(code.all()) else self.codes.bit_origins.of_scales(tensor)
        if bool((code if scales is None else code | scales).all()) and float(code.float().mean()) >= MOSTLY:
            self._out(tensor, numbers, book, number, None if scales is None else ~code)
        elif float(code.float().mean()) >= MOSTLY:
            mixed = self._mixed([each[~code] for each in runs], moving[~code])
            if float(mixed.float().mean()) >= MOSTLY:
                line = self.books[int(book[code][0])].track.rounded
                self.codes.note(self.codes.described("cast"), MixedCodes(line, float(mixed.float().sum() / len(numbers))))

    def _book(self, number: torch.Tensor) -> torch.Tensor:
        """For each number, the place of its book."""
        return torch.searchsorted(torch.tensor([each.first for each in self.books], dtype=number.dtype, device=number.device), number, right=True) - 1

    def _read(self, runs: list[torch.Tensor], moving: torch.Tensor, bit: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The code that this bit of each integer belongs to, its place there, and whether it belongs to any. It may be inverted."""
        read = torch.zeros(len(moving), dtype=torch.int32, device=moving.device)
        for run, each in enumerate(runs):
            read |= (each >> bit & 1).to(torch.int32) << run
        inverse = ~read & (1 << RUNS) - 1
        known = self._numbered(read)
        read = torch.where(known, read, inverse)
        found = (known | self._numbered(read)) & (moving >> bit & 1 != 0)
        return torch.where(found, read & LAST, 1), read >> DIGITS & (1 << PLACES) - 1, found

    def _mixed(self, runs: list[torch.Tensor], moving: torch.Tensor) -> torch.Tensor:
        """Which integers have bits of two codes."""
        low, high = torch.full_like(moving, LAST, dtype=torch.int32), torch.zeros_like(moving, dtype=torch.int32)
        for bit in range(8 * moving.element_size()):
            if bool((moving >> bit & 1).any()):
                number, _, found = self._read(runs, moving, bit)
                low, high = torch.where(found, torch.minimum(low, number), low), torch.where(found, torch.maximum(high, number), high)
        return high > low

    def _numbered(self, read: torch.Tensor) -> torch.Tensor:
        """Whether digits are those of a number that was given, and of its check."""
        number = read & LAST
        return (number > 0) & (number < self.next) & (read >> DIGITS + PLACES == _check(number))

    def _out(self, tensor: torch.Tensor, numbers: torch.Tensor, books: torch.Tensor, codes: torch.Tensor, foreign: torch.Tensor | None) -> None:
        """The tensor holds codes again, those with these numbers. What was changed of their value is added to `exact` too. `foreign`: what is no
        code, and stands for no data."""
        known = [each for place, each in enumerate(self.books) if bool((books == place).any())]
        first = known[0].track
        if len({(len(each.track.plains), len(each.track.units)) for each in known}) > 1:
            return
        made = [torch.zeros(len(numbers), device=tensor.device) for _ in (0, first, *first.plains, *first.units)]
        for book in known:
            here = books == self.books.index(book) if len(known) > 1 else slice(None)
            track, source = book.track, codes[here] - book.first
            for copy, flat in zip(made, (book.codes, *(each.numbers for each in (track.exact, *track.plains, *track.units))), strict=True):
                copy[here] = flat[source]
        for copy in made if foreign is not None else ():
            copy[foreign] = 0.0
        moved, negative = numbers.float() - made[0], made[0] < 0
        even = bool((moved == moved[0]).all())  # by a zero point, perhaps of 0
        unsigned = even and not bool(moved.any()) if first.unsigned else not even and bool(moved[negative].any())
        exact, others = Flat(made[1] + moved), [Flat(each) for each in made[2:]]
        many, shifted = len(first.plains), first.shifted != (even and not first.unsigned and bool(moved.any()))
        self.codes.tracks.put(tensor, dataclasses.replace(first, exact=exact, plains=others[:many], units=others[many:], unsigned=unsigned,
                                                          shifted=shifted, read=False))  # fmt: skip


def _check(number: torch.Tensor) -> torch.Tensor:
    """Digits that are a function of a number and differ from those of its neighbours."""
    return (number * 2039 >> 9 ^ number * 31) & (1 << CHECKS) - 1


def _digit(number: torch.Tensor, check: torch.Tensor, run: int) -> torch.Tensor:
    """The digit that all bits of a code have in this run."""
    return number >> run & 1 if run < DIGITS else check >> run - DIGITS - PLACES & 1


def _place(width: int, run: int) -> int:
    """What a code of so many bits is in a run that shows the places of its bits. Behind the last bit comes its sign."""
    made = sum((bit >> run - DIGITS & 1) << bit for bit in range(width))
    return made - (made >> width - 1 << width)
