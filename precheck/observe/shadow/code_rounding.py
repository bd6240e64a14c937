"""The step that rounds a scaled tensor to codes: starts a `Track`, and notes clipping and biased rounding."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.code_copies import Track
from precheck.observe.shadow.code_notes import Clipped, Dead, Skewed
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.partial_writes import region
from precheck.observe.shadow.repeated_noise import Noises
from precheck.observe.shadow.replay import OpCall
from precheck.observe.shadow.scale_roots import Powers
from precheck.observe.shadow.storages import Flat, whole

if TYPE_CHECKING:
    from precheck.observe.shadow.codes import Codes
    from precheck.observe.shadow.scaled_tensors import Scaled

ROUNDS = ops.WHOLE | ops.CASTS
FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)
SAMPLE = 1 << 16
WIDEST = 2.0
"""Steps. A larger error is not rounding."""
FILLED = 15 / 16
"""Share of a format's largest number. Codes under a scale that is made for the format go up to more."""
FEWEST = 64
"""Elements that are needed to judge the mean of errors."""


@dataclasses.dataclass(slots=True)
class Origin:
    """Scaled numbers that are rounded by a table lookup: the numbers, and the factors they were multiplied by."""

    exact: torch.Tensor
    bys: list[torch.Tensor]


def followed(codes: Codes, op: OpCall, inputs: list[torch.Tensor], result: torch.Tensor) -> None:
    """After an op on a scaled tensor: its result becomes codes, stays scaled, or is not followed."""
    source, base = inputs[0], op.base
    scaled = codes.scaled.get(source)
    if scaled is None:
        return
    if base in ops.PLACES or result.shape != source.shape:
        _sought(codes, base, scaled, source, result)
    elif base in ROUNDS and (result.dtype in FLOATS or not result.is_floating_point() or base not in ("_to_copy", "copy")):
        if result.dtype is not torch.bool:
            _coded(codes, op, scaled, source, result)
    elif (base.startswith("clamp") or base == "abs" or base in ops.WHOLE_COPIES | ops.CASTS) and whole(result):
        before = scaled.unclipped or (Flat.of(source, source) if base.startswith("clamp") else None)
        before = before and Flat.of(result, before.seen(source))
        kept = [scaled.by(place, source) for place in range(len(scaled.bys))]
        codes.scaled.put(result, dataclasses.replace(scaled, region=region(result), bys=kept, unclipped=before))
    elif base in ("add", "sub") and whole(result):
        _shifted(codes, scaled, op.args, source, result)


def _sought(codes: Codes, base: str, scaled: Scaled, source: torch.Tensor, result: torch.Tensor) -> None:
    """A lookup begins: the scaled tensor is compared with each number of a format, or has been replaced by its place among them."""
    if base == "sub" and result.dim() == source.dim() and source.shape[-1:] == (1,):
        source = source.squeeze(-1)
    elif base not in ops.PLACES or result.shape != source.shape:
        return
    codes.origins.put(result, Origin(source.float().clone(), [scaled.by(place, source).clone() for place in range(len(scaled.bys))]))


def looked_up(codes: Codes, op: OpCall, inputs: list[torch.Tensor], result: torch.Tensor) -> None:
    """After an op on places in a table of numbers. If it reads the numbers from the table, the result holds codes."""
    place, origin = next((each, found) for each in inputs if (found := codes.origins.get(each)) is not None)
    table = not place.is_floating_point() and result.is_floating_point() and op.base in ops.MOVING
    if table and result.numel() == origin.exact.numel():
        bys = [each.expand(origin.exact.shape).reshape(result.shape) for each in origin.bys]
        exact = origin.exact.reshape(result.shape)
        _become(codes, op, exact, exact, bys, result)
    elif not table and (op.base in {*ops.PLACES, *ops.MOVING, *ops.POWERS} or op.base == "pow"):
        codes.origins.put(result, origin)


def _become(
    codes: Codes, op: OpCall, exact: torch.Tensor, data: torch.Tensor, bys: list[torch.Tensor], result: torch.Tensor, powers: Powers | None = None
) -> Operation:
    """`result` holds codes of `exact`, which is `data` times each of `bys`, and a zero point. `powers`: what the first of these is made of."""
    place = codes.described(op.plan.name)
    codes.scales.rounded_under(bys[0])
    plains = [Flat.of(result, torch.nan_to_num(data / by)) for by in bys]
    units = [Flat.of(result, 1 / by) for by in bys]
    first = bys[0].detach()
    owned = (1 / float(first.amax()),) if first.numel() and bool(first.amax() == first.amin() != 0) else ()
    end = torch.finfo(result.dtype).max if result.dtype in FLOATS else math.inf
    filled = FILLED * end <= float(exact.abs().amax()) if exact.numel() else False
    void = bool((exact.isnan() & bys[0].isinf()).any())  # 0 / 0, or 0 times the inverse of 0
    codes.tracks.put(result, Track(Flat.of(result, exact), plains, place.blamed, units, shifted=data is not exact, dead=place if void else None,
                                   owned=owned, filled=filled, powers=powers))  # fmt: skip
    return place


def dead(codes: Codes, track: Track) -> None:
    """Records codes that are NaN since they and their scale are 0, where they are read by what makes numbers of them."""
    share = float(track.exact.numbers.isnan().float().mean()) if track.dead is not None else 0.0
    if share and track.dead is not None:
        codes.note(track.dead, Dead(share))


def _shifted(codes: Codes, scaled: Scaled, args: tuple[Any, ...], source: torch.Tensor, result: torch.Tensor) -> None:
    """A number has been added to a scaled tensor: noise, half a step or a zero point. `_exact` tells which, once it is rounded."""
    other = args[1] if args[0] is source else args[0]
    if scaled.added is None and source is args[0]:
        kept = [scaled.by(place, source) for place in range(len(scaled.bys))]
        codes.scaled.put(result, dataclasses.replace(scaled, region=region(result), bys=kept, added=other))


def _exact(scaled: Scaled, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """The rounded tensor without noise, the same without a zero point, and whether there is noise."""
    wide, added = source.float(), scaled.added
    if added is None:
        return wide, wide, False
    if isinstance(added, torch.Tensor):
        added = added.detach().float().expand(source.shape) if added.numel() < source.numel() else added.float().reshape(source.shape)
        small, noisy = bool((added.abs() <= 1).all()), added.numel() == scaled.added.numel()  # type: ignore[union-attr]
    else:
        small, noisy = abs(added) < 1, False
    data = wide - added
    return (data, data, noisy) if small else (wide, data, False)


def _coded(codes: Codes, op: OpCall, scaled: Scaled, source: torch.Tensor, result: torch.Tensor) -> None:
    if op.base in ops.CASTS and not result.is_floating_point() and not bool((source.float() % 1 != 0).any()):
        return  # integers already
    exact, data, noisy = _exact(scaled, source)
    bys = [scaled.by(place, source).expand(result.shape) for place in range(len(scaled.bys))]
    place = _become(codes, op, exact, data, bys, result, scaled.powers)
    if scaled.unclipped is not None:
        clipped(codes, source, result, scaled.unclipped.seen(source), source.float())
    elif result.dtype in FLOATS:
        end = torch.finfo(result.dtype).max
        clipped(codes, source, result, exact, exact.clamp(-end, end))
    else:
        codes.casts.clean(place)
    if result.dtype not in FLOATS:
        _skewed(codes, place, noisy, exact, result.float())
        if noisy and isinstance(scaled.added, torch.Tensor):
            codes.casts.drawn(place, scaled.added, exact, result)


def clipped(codes: Codes, source: torch.Tensor, result: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> None:
    """Notes what clipping costs beside what rounding costs. `before` and `after` are the tensor around the clamp."""
    place = codes.described("clamp")
    norm, lost = float(before.float().norm()), float((before - after).float().norm())
    if not lost or not norm or not math.isfinite(norm):
        codes.casts.clean(place)
        return
    rounding, end = float((result.float() - after.float()).norm()), float(after.abs().amax())
    greatest = float(before.abs().amax()) / max(end, 1e-30)
    codes.casts.clipped(place, Clipped(lost / norm, rounding / norm, float((before != after).float().mean()), greatest))


def _skewed(codes: Codes, place: Operation, noisy: bool, exact: torch.Tensor, made: torch.Tensor) -> None:
    """Notes the mean of the rounding errors, in steps."""
    error = (made - exact).reshape(-1)[:SAMPLE]
    inside = error.abs() <= WIDEST
    error, signs = error[inside], exact.reshape(-1)[:SAMPLE][inside].sign()
    if len(error) < FEWEST:
        return
    mean, inwards, chance = float(error.mean()), float(-(error * signs).mean()), 0.6 / len(error) ** 0.5
    off, towards = (inwards, True) if abs(inwards) > abs(mean) else (mean, False)
    codes.casts.skewed(place, Skewed(off, towards, noisy, chance))


def chosen(codes: Codes, args: tuple[Any, ...], made: Track, result: torch.Tensor) -> None:
    """After `torch.where` on codes of the same numbers. A choice between the neighbours below and above is the rounding, so its errors are judged and
    not those of the floor before. The result has a sign if one of the choices has."""
    choices = [(each, track) for each in args[1:3] if isinstance(each, torch.Tensor) and (track := codes.tracks.get(each)) is not None]
    made.unsigned = made.unsigned and all(track.unsigned for _, track in choices)
    data = [track.plains[0].seen(each) for each, track in choices]
    if len(data) < 2 or any(each.shape != data[0].shape or not torch.equal(each, data[0]) for each in data[1:]):
        return
    for source, track in choices:
        exact = track.exact.seen(source)
        if exact.shape == result.shape and bool(((result.float() - exact).abs() <= 1).all()):
            copies = [[Flat.of(result, each.seen(source)) for each in kept] for kept in (track.plains, track.units)]
            made.exact, made.plains, made.units, made.shifted, made.rounded = Flat.of(result, exact), *copies, track.shifted, track.rounded
            line = codes.casts.lines.get((track.rounded, ""))
            if line is not None:
                line.skewed = None
                _skewed(codes, line.place, True, exact, result.float())
            return


@dataclasses.dataclass(slots=True)
class Line:
    """The casts of one line: calls, calls with clipping, and the worst of each kind."""

    place: Operation
    calls: int = 0
    clips: int = 0
    clipped: Clipped | None = None
    skewed: Skewed | None = None
    noises: Noises = dataclasses.field(default_factory=Noises)


class Casts:
    """The casts of a run, by line."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self.lines: dict[tuple[str, str], Line] = {}  # by line, and by the line that has made the codes if it is their sums that are kept there
        self.dequantised: set[str] = set()  # lines whose codes have been multiplied by a scale: these lines quantise
        self.summed: set[str] = set()  # lines whose dequantised values are added to something
        self.centred: set[str] = set()  # lines whose codes have had half a step added: they are truncated, and stand for the middle of an interval

    def _line(self, place: Operation, sums: str = "") -> Line:
        return self.lines.setdefault((place.blamed, sums), Line(place))

    def clean(self, place: Operation, sums: str = "") -> None:
        """A cast without clipping, or a clamp of sums of codes that the line `sums` has made."""
        self._line(place, sums).calls += 1

    def clipped(self, place: Operation, seen: Clipped, sums: str = "") -> None:
        line = self._line(place, sums)
        line.calls += 1
        line.clips += seen.lost > seen.rounding
        if line.clipped is None or seen.lost > line.clipped.lost:
            line.clipped, line.place = seen, place

    def skewed(self, place: Operation, seen: Skewed) -> None:
        line = self._line(place)
        if line.skewed is None or abs(seen.mean) > abs(line.skewed.mean):
            line.skewed = seen

    def drawn(self, place: Operation, noise: torch.Tensor, exact: torch.Tensor, made: torch.Tensor) -> None:
        """`noise` was added to `exact` before it was rounded."""
        self._line(place).noises.seen(noise, exact, made)

    def tell(self) -> None:
        """Records the worst cast of each line, at the end of the run."""
        for (blamed, sums), line in self.lines.items():
            if (sums or blamed) not in self.dequantised:
                continue
            worst = line.clipped and dataclasses.replace(line.clipped, calls=line.calls, clips=line.clips)
            skewed = None if line.place.blamed in self.centred else line.skewed
            repeated = line.noises.worst() if line.place.blamed in self.summed or line.place.phase == "backward" else None
            for remark in (worst, skewed, repeated):
                if remark is not None:
                    self.codes.note(line.place, remark)
        self.lines = {}
