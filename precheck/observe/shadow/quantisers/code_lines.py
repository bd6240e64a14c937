"""Collects what the casts of each line have done to codes, and records the worst of each kind at the end. Stochastic rounding that uses the random
numbers of an earlier call again is one kind: the errors of both calls are alike, and do not average out.

Only calls that round the same quantity are compared, such as a gradient in two steps. A call that rounds the same numbers is a recomputation and does
not count. Neither does noise that the program keeps in one tensor: it may be a pattern, as in ordered dithering.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.quantisers.code_copies import Track
from precheck.observe.shadow.quantisers.code_notes import Changed, Clipped, Coarse, RepeatedNoise, Skewed

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes


KEPT = 8
"""Noises of a line that are remembered."""
ALIKE = 0.5
"""Cosine between what two calls round, from which it is the same quantity."""
SAMPLE = 1 << 14


@dataclasses.dataclass(slots=True)
class AddedNoise:
    """Random numbers, and the calls that rounded with them. Errors are in steps."""

    drawn: StorageWeakRef
    first: torch.Tensor  # what the first of these calls rounded
    total: torch.Tensor  # the sum of their errors
    energy: float  # the sum of the squares of these errors
    calls: int = 1

    @property
    def grown(self) -> float:
        """The square of the sum of errors, over the sum of their squares: 1 where they are independent, the number of calls where they are one."""
        return float(self.total.square().sum()) / max(self.energy, 1e-30)


class AddedNoises:
    """The noises of one line."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, float, float], AddedNoise] = {}

    def seen(self, noise: torch.Tensor, exact: torch.Tensor, made: torch.Tensor) -> None:
        """A call has rounded `exact` and `noise` to `made`."""
        drawn = StorageWeakRef(noise.untyped_storage())
        noise, exact, made = (each.detach().float().reshape(-1)[:SAMPLE] for each in (noise, exact, made))
        key, error = (noise.numel(), float(noise.double().sum()), float(noise[0])), made - exact
        found, energy = self.held.get(key), float(error.square().sum())
        if found is None:
            self.held[key] = AddedNoise(drawn, exact.clone(), error, energy)
            if len(self.held) > KEPT:
                del self.held[next(iter(self.held))]
            return
        again = found.drawn.expired() or found.drawn.cdata != drawn.cdata
        if again and not torch.equal(exact, found.first) and float(torch.cosine_similarity(exact, found.first, 0)) > ALIKE:
            found.total, found.energy, found.calls = found.total + error, found.energy + energy, found.calls + 1

    def worst(self) -> RepeatedNoise | None:
        """The noise with which most calls have rounded."""
        found = max(self.held.values(), key=lambda each: each.calls, default=None)
        return None if found is None or found.calls == 1 else RepeatedNoise(found.calls, found.grown)


@dataclasses.dataclass(slots=True)
class Line:
    """The casts of one line: calls, calls with clipping, and the worst of each kind."""

    place: Operation
    calls: int = 0
    clips: int = 0
    clipped: Clipped | None = None
    coarse: dict[int, Coarse] = dataclasses.field(default_factory=dict)  # by call
    skewed: Skewed | None = None
    changed: Changed | None = None
    noises: AddedNoises = dataclasses.field(default_factory=AddedNoises)


class CastsByLine:
    """The casts of a run, by line."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self.lines: dict[tuple[str, str], Line] = {}  # by line, and by the line that has made the codes if it is their sums that are kept there
        self.meant: set[str] = set()  # lines whose codes have been dequantised
        self.summed: set[str] = set()  # lines whose dequantised values are added to something
        self.centred: set[str] = set()  # lines whose codes have had half a step added

    def note_dequantised(self, track: Track) -> None:
        """These codes have been multiplied by a scale, so the lines that made them are quantisers."""
        self.meant |= {track.rounded, *track.others}

    def note_added_number(self, rounded: str, number: Any) -> None:
        """A number has been added to codes of that line. If it is half a step, the codes are truncated and stand for the middle of an interval."""
        if isinstance(number, float) and number % 1 == 0.5:
            self.centred.add(rounded)

    def _line(self, place: Operation, sums: str = "") -> Line:
        return self.lines.setdefault((place.blamed, sums), Line(place))

    def count(self, place: Operation, sums: str = "") -> None:
        """A cast without clipping, or a clamp of sums of codes that the line `sums` has made."""
        self._line(place, sums).calls += 1

    def note_clipping(self, place: Operation, seen: Clipped, sums: str = "", *, counted: bool = False) -> None:
        """A cast with clipping. `counted`: it has been counted already, when it was rounded."""
        line = self._line(place, sums)
        line.calls += not counted
        line.clips += seen.lost > seen.rounding
        if line.clipped is None or seen.lost > line.clipped.lost:
            line.clipped, line.place = seen, place

    def note_wasted_bits(self, place: Operation, seen: Coarse) -> None:
        """A cast that is counted already wastes bits."""
        line = self._line(place)
        line.coarse[line.calls] = seen

    def note_bias(self, place: Operation, seen: Skewed) -> None:
        line = self._line(place)
        if line.skewed is None or abs(seen.mean) > abs(line.skewed.mean):
            line.skewed = seen

    def judged_anew(self, rounded: str) -> Line | None:
        """The casts of a line whose codes are only one of two that are chosen from: the bias of their errors does not count."""
        line = self.lines.get((rounded, ""))
        if line is not None:
            line.skewed = None
        return line

    def note_changed(self, place: Operation, seen: Changed) -> None:
        """Codes that were read from a table are other than those of the nearest numbers in it."""
        line = self._line(place)
        if line.changed is None or seen.off > line.changed.off:
            line.changed = seen

    def note_noise(self, place: Operation, noise: torch.Tensor, exact: torch.Tensor, made: torch.Tensor) -> None:
        """`noise` was added to `exact` before it was rounded."""
        self._line(place).noises.seen(noise, exact, made)

    def tell(self) -> None:
        """Records the worst cast of each line, at the end of the run."""
        for (blamed, sums), line in self.lines.items():
            if (sums or blamed) not in self.meant:
                continue
            worst = line.clipped and dataclasses.replace(line.clipped, calls=line.calls, clips=line.clips)
            coarse = sorted(line.coarse.values(), key=lambda each: each.share)[line.calls // 2 : line.calls // 2 + 1]
            skewed = None if line.place.blamed in self.centred else line.skewed
            repeated = line.noises.worst() if line.place.blamed in self.summed or line.place.phase == "backward" else None
            for remark in (worst, *coarse, skewed, line.changed, repeated):
                if remark is not None:
                    self.codes.note(line.place, remark)
        self.lines = {}
