"""Follows codes through integers that hold several of them, by giving each bit of a code a label.

Shifts, masks, "or" and sums of words move bits and do not look at them. So the same ops, run on other bits, show where each bit went. A run on labels
sets each bit of a code to one digit of the bit's own number. After as many runs as the number has digits, the digits at a place of a result say which
bit lies there, or that no bit of a code does. No layout is known by name, and no op either.

An integer is a code again if its lowest bit is the lowest bit of a code and each other bit is one of the same code in its place, its sign, or a
constant. Where most integers of a tensor are codes and others have the bits of two codes, they were taken out wrongly.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.quantisers.code_copies import Track
from precheck.observe.shadow.quantisers.code_notes import Mixed
from precheck.observe.shadow.replay import OpCall, tensors_in
from precheck.observe.shadow.storages import Flat, Storages, flattened, length, plain, whole

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

SHIFTS = {"__lshift", "__ilshift", "bitwise_left_shift", "__rshift", "__irshift", "bitwise_right_shift"}
JOINS = {"__or", "__ior", "bitwise_or", "__xor", "__ixor", "bitwise_xor"}
BITS = SHIFTS | JOINS | {"__and", "__iand", "bitwise_and"}
MOVED = (ops.MOVING | ops.WHOLE_COPIES | ops.CASTS | {"copy"}) - {"where"}
COMPUTED = ops.ADDITIONS | ops.CUTS | {"sum", "mul"}
"""Ops that pack and unpack integers by numbers, such as sums of shifted codes."""
DIGITS, CHECKS = 20, 8
"""Digits of the number of a bit, and of the check behind it."""
RUNS = DIGITS + CHECKS
MIXED = 0.5
"""Share of integers that are codes, above which the others should be codes too."""


@dataclasses.dataclass(slots=True)
class Book:
    """Codes whose bits have the numbers from `first` on, `width` for each element of a storage."""

    first: int
    width: int
    numbers: torch.Tensor
    track: Track


@dataclasses.dataclass(slots=True)
class Labels:
    """For each run on labels, the bytes of a storage."""

    runs: list[torch.Tensor]
    resolved: bool = False  # whether it is known which of its integers are codes

    def seen(self, tensor: torch.Tensor, run: int) -> torch.Tensor:
        return self.runs[run].view(tensor.dtype).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


class PackedCodes:
    """The integers of a run that hold bits of codes."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self.held: Storages[Labels] = Storages()
        self.books: list[Book] = []
        self.next = 1

    def follow(self, op: OpCall, result: torch.Tensor) -> bool:
        """After an op: follows bits of codes. Returns whether it has, so that nothing else is asked of the op."""
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
        labels = self._run(op, result)
        self.codes.tracks.drop(result)
        if labels is None:
            self.held.drop(result)
        else:
            self.held.put(result, labels)
        return labels is not None

    def _begun(self, tensor: torch.Tensor) -> None:
        """Gives the bits of codes their numbers."""
        track = self.codes.tracks.get(tensor)
        if self.held.get(tensor) is not None or track is None or track.multipliers or track.dense:
            return
        numbers = flattened(tensor).clone()
        low, high = int(numbers.amin()), int(numbers.amax())
        width, size = max(high, -low - 1).bit_length() + (low < 0), 8 * tensor.element_size()
        bits = width * len(numbers)
        if not 0 < width <= size or bits + 1 >= 1 << DIGITS:
            return
        if self.next + bits >= 1 << DIGITS:  # all numbers have been given: what was packed before is followed no longer
            self.held, self.books, self.next = Storages(), [], 1
        self.books.append(Book(self.next, width, numbers, track))
        number = torch.arange(bits, device=tensor.device).view(-1, width) + self.next
        self.next, track.read = self.next + bits, True
        number = number | _check(number) << DIGITS
        places, runs = torch.arange(width, device=tensor.device), []
        for run in range(RUNS):
            made = ((number >> run & 1) << places).sum(1)
            made = torch.where(made >> width - 1 > 0, made - (1 << width), made) if low < 0 else made
            runs.append(made.to(tensor.dtype).view(torch.uint8))
        self.held.put(tensor, Labels(runs))

    def _run(self, op: OpCall, result: torch.Tensor) -> Labels | None:
        """The op on labels, and on other tensors as they are. What it writes into has been written already."""
        target = op.args[0] if op.plan.written else None
        before = None if target is None else self.held.get(target)
        if target is not None and before is None:
            if op.base not in JOINS | {"copy"} and not (op.base in MOVED and whole(result)):
                return None
            content = flattened(target).clone()
            if op.base in JOINS:  # what was there has no bits that are joined now
                content.as_strided(target.size(), target.stride(), target.storage_offset()).bitwise_and_(~op.args[1])
            before = Labels([content.view(torch.uint8).clone() for _ in range(RUNS)])
        runs = []
        for run in range(RUNS):

            def change(value: Any, run: int = run) -> Any:
                if isinstance(value, (list, tuple)):
                    return type(value)(map(change, value))
                if not isinstance(value, torch.Tensor):
                    return value
                labels = before if value is target else self.held.get(value) if plain(value) else None
                return value if labels is None else labels.seen(value, run)

            made = op.func(*map(change, op.args), **op.kwargs)
            if before is None:
                flat = torch.zeros(length(result), dtype=result.dtype, device=result.device)
                flat.as_strided(result.size(), result.stride(), result.storage_offset()).copy_(made)
                runs.append(flat.view(torch.uint8))
        return Labels(runs if before is None else before.runs)

    def resolved(self, tensor: torch.Tensor) -> bool:
        """Whether the integers of a storage are codes, which are followed as such from now on."""
        labels = self.held.get(tensor)
        if labels is not None and not labels.resolved:
            labels.resolved = True
            self._resolve(tensor, labels)
        return self.codes.tracks.get(tensor) is not None

    def _resolve(self, tensor: torch.Tensor, labels: Labels) -> None:
        numbers, runs = flattened(tensor), [each.view(tensor.dtype) for each in labels.runs]
        moving = torch.zeros_like(numbers)  # bits that are not the same in all runs
        for each in runs:
            moving |= each ^ runs[0]
        firsts = torch.tensor([book.first for book in self.books], device=tensor.device)
        widths = torch.tensor([book.width for book in self.books], device=tensor.device)
        for bit in range(8 * tensor.element_size()):
            if bit and not bool((moving >> bit & 1).any()):
                continue
            read = torch.zeros(len(numbers), dtype=torch.int64, device=tensor.device)
            for run, each in enumerate(runs):
                read |= (each >> bit & 1).long() << run
            fixed = (read == 0) | (read == (1 << RUNS) - 1)
            read = torch.where(self._numbered(read), read, (1 << RUNS) - 1 - read)  # a bit may be inverted
            found = self._numbered(read) & ~fixed
            number = torch.where(found, read & (1 << DIGITS) - 1, self.books[0].first)
            book = torch.searchsorted(firsts, number, right=True) - 1
            element, place = (number - firsts[book]).div(widths[book], rounding_mode="floor"), (number - firsts[book]) % widths[book]
            if not bit:
                owner, code, foreign = (book, element), found & (place == 0), torch.zeros_like(found)
                continue
            same = (book == owner[0]) & (element == owner[1]) & ((place == bit) | ((place == widths[book] - 1) & (place < bit)))
            foreign = foreign | (found & ~same)
            code = code & (fixed | (found & same))
        if bool(code.all()):
            self._out(tensor, numbers, *owner)
        elif float(code.float().mean()) >= MIXED and bool((foreign & ~code).any()):
            self.codes.note(self.codes.described("cast"), Mixed(self.books[int(owner[0][0])].track.rounded, float((foreign & ~code).float().mean())))

    def _numbered(self, read: torch.Tensor) -> torch.Tensor:
        """Whether digits are those of a number that was given, and of its check."""
        number = read & (1 << DIGITS) - 1
        return (number > 0) & (number < self.next) & (read >> DIGITS == _check(number))

    def _out(self, tensor: torch.Tensor, numbers: torch.Tensor, books: torch.Tensor, elements: torch.Tensor) -> None:
        """The tensor holds codes again. What was changed of their value is added to `exact` too."""
        known = [self.books[place] for place in books.unique().tolist()]
        first = known[0].track
        if len({(len(each.track.plains), len(each.track.units)) for each in known}) > 1:
            return
        made = [torch.zeros(len(numbers), device=tensor.device) for _ in (0, first, *first.plains, *first.units)]
        unsigned = False
        for book in known:
            here = books == self.books.index(book)
            track, source = book.track, elements[here]
            for copy, flat in zip(made, (book.numbers.float(), *(each.numbers for each in (track.exact, *track.plains, *track.units))), strict=True):
                copy[here] = flat[source]
            equal = torch.equal(made[0][here], numbers[here].float())
            cut = (made[0][here] < 0) & (made[0][here] != numbers[here])
            unsigned = unsigned or (equal if track.unsigned else bool(cut.any()))
        exact, others = Flat(made[1] + numbers.float() - made[0]), [Flat(each) for each in made[2:]]
        many = len(first.plains)
        made_again = dataclasses.replace(first, exact=exact, plains=others[:many], units=others[many:], unsigned=unsigned, read=False)
        self.codes.tracks.put(tensor, made_again)


def _check(number: torch.Tensor) -> torch.Tensor:
    """Digits that are a function of a number and differ from those of its neighbours."""
    return (number * 40503 >> 9 ^ number * 31) & (1 << CHECKS) - 1
