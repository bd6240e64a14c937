"""The copies that are kept for the codes in one storage, with and without their scales, what an op makes of them, and the distance between them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.memory import storages
from precheck.observe.shadow.memory.storages import Flat, plain
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.quantisers.code_notes import Changed, Fault, Uncancelled
from precheck.observe.shadow.quantisers.scales.scale_roots import Nested, Powers
from precheck.observe.shadow.replaying.replay import OpCall, tensors_in
from precheck.ops.registry import REGISTRY
from precheck.ops.spec import Kind

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
ALTERNATIVES = 8
LIKE = 1e-4
"""Relative distance below which two scales are the same."""
ENDS = (127.0, 255.0, 240.0, 448.0, 57344.0, 6 * 448.0)
"""Largest numbers of formats of eight bits, and of NVFP4's scales times its codes. Smaller ones, such as 7, may be meant."""
SATURATED = frozenset(torch.finfo(each).max for each in FLOATS)
AGREE = 2.0**-6
"""Two copies agree below this relative distance. A scale that was itself rounded to bfloat16 is off by less."""


@dataclasses.dataclass(slots=True)
class Track:
    """The copies for the codes in one storage, and what has been done to the codes."""

    exact: Flat
    plains: list[Flat]
    rounded: str  # the line that made the codes
    units: list[Flat] = dataclasses.field(default_factory=list)  # for each of `plains`, what one step of the codes is worth; empty if unknown
    offset: bool = False  # whether the last of `plains` is the data before extremes were subtracted from it
    scales: int = 1
    multipliers: int = 0
    sure: bool = True  # whether all factors were recognised as scales
    shifted: bool = False  # whether a zero point has been added
    unsigned: bool = False  # whether the codes have lost their sign, so that some are too large by a power of two
    dense: bool = False  # whether they have gone through a matrix product
    sums: bool = False  # whether they are sums of a product that have been rounded again, of which a ReLU may leave nothing below zero
    owed: int = 0  # corrections for zero points that are still to be subtracted from that product
    corrected: float = 0.0  # the norm of those that were products of data and zero points, over that of what they left
    early: int = 0  # multipliers before that product
    read: bool = False  # whether an op has read it
    joined: bool = False  # whether a term that no scale was divided out of has been added to a product of the codes
    term: Operation | None = None  # where real numbers have been added to such a product before any scale was multiplied by
    sources: frozenset[int] = frozenset()  # extremes of data that the codes' own scales are made of
    cost: tuple[float, float] | None = None  # error of rounding: over the norm, and its root mean square; None if the codes have been changed since
    filled: bool = False  # whether they surely have a unit: they go up to the largest number of a float8 format, or meet the data they stand for
    powers: Powers | None = None  # extremes of data that it has been multiplied by and divided by; None if unknown
    begun: Powers | None = None  # the same, where it was rounded
    due: Operation | None = None  # what made it a gradient that a Function has returned
    nested: Nested | None = None  # the scales that they are codes of
    dead: Operation | None = None  # the rounding of elements that are NaN because they and their scale are 0
    numbered: bool = False  # whether numbers that the program has as such have been multiplied by
    changed: tuple[Operation, Changed] | None = None  # where integers were summed that are not what was rounded
    bare: float | None = None  # the greatest magnitude of data that was cast under no scale
    chosen: bool = False  # whether their scale is an average of data or is learned, under which some of it is clipped on purpose
    last: Operation | None = None  # the latest multiplication
    others: frozenset[str] = frozenset()  # lines that made other codes which it is computed from


def alternatives(tracks: list[Track]) -> int:
    """How many plain copies a result of these tracks has."""
    distinct = {id(track): len(track.plains) for track in tracks}
    return min(ALTERNATIVES, math.prod(distinct.values()))


def greatest(costs: Iterable[tuple[float, float] | None]) -> tuple[float, float] | None:
    """The greatest error of several codes. None if one of them is unknown."""
    known = list(costs)
    return (max(each[0] for each in known if each), max(each[1] for each in known if each)) if all(known) else None


def cost(exact: torch.Tensor, made: torch.Tensor) -> tuple[float, float]:
    """The error of `made`: over the norm of `exact`, and its root mean square."""
    exact = torch.nan_to_num(exact)
    off = float((torch.nan_to_num(made.float()) - exact).norm())
    return off / max(float(exact.norm()), 1e-30), off / max(exact.numel(), 1) ** 0.5


def neutral(factor: torch.Tensor) -> bool:
    """Whether a factor is a single number, or consists of -1, 0 and 1."""
    return factor.numel() == 1 or factor.dtype is torch.bool or bool((factor.abs() * (1 - factor.abs()) == 0).all())


def signed(factor: torch.Tensor) -> bool:
    """Whether a factor has numbers of both signs, which no scale has: it is data."""
    return bool((factor < 0).any() and (factor > 0).any())


def distance(exact: torch.Tensor, plain: torch.Tensor) -> float:
    """|exact - plain| / |plain|."""
    return float((exact - plain).norm() / plain.norm().clamp_min(1e-30))


def factor_between(made: torch.Tensor, expected: torch.Tensor) -> float:
    """The factor that brings `expected` closest to `made`."""
    return float((made * expected).sum() / expected.square().sum().clamp_min(1e-30))


def ratios(exact: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
    """The sorted ratios |exact / plain|. Small elements are left out, since cancellation makes theirs meaningless."""
    large = plain.abs() > 0.003 * plain.abs().amax()
    return (exact[large] / plain[large]).abs().sort().values


def merged(result: torch.Tensor, tracks: list[Track], exact: torch.Tensor, plains: list[torch.Tensor], *, product: bool = True) -> Track:
    """The track of a result that is computed from the codes of `tracks`. A product has the scales of all its operands. In a sum or a stack each
    element has those of one."""
    count = sum if product else max
    changed = next((track.changed for track in tracks if track.changed is not None), None)
    for track in tracks:
        track.read, track.changed = True, None
    last = max((track.last for track in tracks if track.last is not None), key=lambda each: each.number, default=None)
    return Track(
        Flat.of(result, exact), [Flat.of(result, each) for each in plains[:ALTERNATIVES]], tracks[0].rounded,
        offset=any(track.offset for track in tracks),
        scales=count(track.scales for track in tracks), multipliers=count(track.multipliers for track in tracks),
        sure=all(track.sure for track in tracks), shifted=any(track.shifted for track in tracks), unsigned=any(track.unsigned for track in tracks),
        dense=any(track.dense for track in tracks),
        owed=max(track.owed for track in tracks), corrected=max(track.corrected for track in tracks),
        early=count(track.early for track in tracks), last=last,
        joined=any(track.joined for track in tracks), term=next((track.term for track in tracks if track.term is not None), None),
        others=frozenset().union(*(track.others | {track.rounded} for track in tracks)),
        sources=frozenset().union(*(track.sources for track in tracks)), filled=any(track.filled for track in tracks),
        cost=greatest(track.cost for track in tracks), changed=changed, numbered=any(track.numbered for track in tracks),
        powers=_common(track.powers for track in tracks), begun=_common(track.begun for track in tracks),
        bare=next((track.bare for track in tracks if track.bare is not None), None),
        nested=tracks[0].nested if len(tracks) == 1 else None,
        due=next((track.due for track in tracks if track.due is not None), None),
        dead=next((track.dead for track in tracks if track.dead is not None), None),
    )  # fmt: skip


def _common(powers: Iterable[Powers | None]) -> Powers | None:
    """The powers of a sum: those of its terms, if they all have the same."""
    first, *others = powers
    return first if all(each == first for each in others) else None


def spread(found: torch.Tensor) -> tuple[float, float]:
    """The median of sorted ratios, and their ninth decile over their first."""
    low, middle, high = (float(found[round(part * (len(found) - 1))]) for part in (0.1, 0.5, 0.9))
    return middle, high / low if low > 0 else float("inf")


def uncancelled(track: Track, *, unit: bool) -> Uncancelled | None:
    """The error of codes at a place where their scales must have cancelled. None if they have. `unit`: what reads them is an exponential, or a sum
    with data.

    The code does not say which alternative is meant, so it is the one that explains most: all of the result but for one factor, if there is one.
    """
    exact = track.exact.numbers
    if all(bool((~exact.isfinite() & each.numbers.isfinite()).any()) for each in track.plains):
        return Uncancelled(track.rounded, math.inf, math.inf, math.inf, joined=track.joined)
    least: tuple[bool, float, float, float] | None = None
    for each in track.plains:
        found = ratios(exact, each.numbers)
        if len(found):
            middle, wide = spread(found)
            sign = -1 if float(exact @ each.numbers) < 0 else 1
            whole = wide <= 1 + AGREE and distance(exact / (sign * max(middle, 1e-30)), each.numbers) <= AGREE
            seen = not whole, distance(exact, each.numbers), middle, wide
            least = seen if least is None or seen[:2] < least[:2] else least
    if least is None or not least[1] > AGREE:
        return None
    whole = not least[0]
    fault: Fault = fault_of(track) or ("end" if _end(least[2], dense=track.dense) else "") if whole else ""
    if not fault and unit and track.filled and (_of_data(track) if whole else not track.multipliers):
        fault = "left"
    if whole and not fault and track.dense and track.early != track.multipliers:
        return None
    return Uncancelled(track.rounded, *least[1:], whole, track.joined, fault)


def _of_data(track: Track) -> bool:
    """Whether a result is made of extremes of data, and not only of factors that it was rounded under."""
    return any(key & track.sources or key not in (track.begun or {}) for key in track.powers or {})


def _end(factor: float, *, dense: bool) -> bool:
    """Whether a factor is the largest number of a format, or one over it. No program means such a factor. `dense`: in a product, where the other
    operand may have that number's inverse, so that only one of a float8 format counts, which nothing has taken out."""
    if dense:
        return any(abs(factor / end - 1) < LIKE for end in SATURATED)
    return any(abs(each / end - 1) < LIKE for end in ENDS for each in (factor, 1 / max(factor, 1e-30)))


def fault_of(track: Track) -> Fault:
    """What is wrong with the scales of a result that is off by one factor. The factor is known as powers of extremes of data, on which no result
    should depend. An extreme of other data may be meant, as in a norm, but not where it takes the place of the codes' own."""
    if track.bare is not None and track.multipliers:
        return "unscaled"
    powers, begun = track.powers or {}, track.begun or {}
    known = track.sources.union(*begun)
    own = {key: power for key, power in powers.items() if key & known}
    if any(power == 2 * begun[key] if key in begun else abs(power) == 2 for key, power in own.items()):
        return "inverse"
    if any(power * begun.get(key, 0.0) < 0 for key, power in own.items()):
        return "twice"
    kept = {key & track.sources for key, power in begun.items() if powers.get(key) == power}
    replaced = bool(kept) and any(key & track.sources not in kept for key in own)  # made of extremes of another time
    others = any(number >= 0 and number not in known for key in powers for number in key)
    if own and (others or replaced) and not sum(powers.values()):
        return "foreign"
    return "forgotten" if len(own) == 1 and not own.keys() & begun.keys() else ""


def after_copy(codes: Codes, inputs: list[torch.Tensor], result: torch.Tensor) -> None:
    """Codes are copied into an existing storage, whole or in part."""
    track = codes.tracks.get(inputs[1]) if len(inputs) > 1 else None
    held = codes.tracks.get(result)
    if track is None and held is not None and not storages.whole(result):
        for each in (held.exact, *held.plains):
            each.seen(result).copy_(result)
    elif track is None:
        codes.tracks.drop(result)
    elif held is None or storages.whole(result):
        codes.pass_on(track, inputs[1], result)
    else:
        held.exact.seen(result).copy_(track.exact.seen(inputs[1]))
        for mine, theirs in (*zip(held.plains, track.plains, strict=False), *zip(held.units, track.units, strict=False)):
            mine.seen(result).copy_(theirs.seen(inputs[1]))
        held.read, track.read = False, True


def on_copies(codes: Codes, op: OpCall, place: int, *only: torch.Tensor, without: int | None = None) -> torch.Tensor:
    """The op's result on the plain copies number `place`, or on the exact ones if it is -1. Only tensors in `only` are replaced, if given.
    `without`: a scale counts as 1, and a tensor that was scaled and not rounded is divided by its latest scales, `without` + 1 of them."""
    seen: list[int] = []
    data = only or tuple(tensors_in(*op.args))
    start = _start(codes, op) if op.plan.written and codes.tracks.get(op.args[0]) is None else None

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if start is not None and tensor is op.args[0]:
            return start
        track = codes.tracks.get(tensor) if plain(tensor) else None
        if without is not None and track is None and (scaled := codes.scaled.get(tensor)) is not None:
            return tensor.float() / scaled.by(min(without, len(scaled.bys) - 1), tensor)
        if without is not None and track is None and codes.scales.made.get(tensor) == "scale":
            return (tensor != 0).float()
        if track is None or all(tensor is not each for each in data):
            wide = tensor.is_floating_point() or op.base in ops.PRODUCTS
            return tensor.float() if wide else tensor
        many = len(track.plains)
        nth = (place // (seen[0] if seen else 1)) % many
        seen.append(many)
        return (track.exact if place < 0 else track.plains[nth]).seen(tensor)

    if op.base == "constant_pad_nd" and place >= 0:
        return torch.nn.functional.pad(change(op.args[0]), op.args[1])  # whatever its code is, what is padded with stands for zero
    return change(op.args[0]) @ change(op.args[1]) if op.base == "_int_mm" else codes.mode.replay.on_others(op, change)


def _start(codes: Codes, op: OpCall) -> torch.Tensor:
    """What was in the tensor that the op has written into. Elements that are joined to it, as sums by index are, are taken away again."""
    written: torch.Tensor = op.args[0]
    if op.base not in REGISTRY or REGISTRY[op.base].kind is not Kind.JOIN:
        return written.float()
    return written.float() - codes.mode.replay.on_others(op, lambda each: torch.zeros_like(each) if each is written else each).float()
