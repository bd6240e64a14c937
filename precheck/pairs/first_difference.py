"""Finds where two models differ first: the module of `other` whose result differs from that of the matching module of `model`, and the line in it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence

import torch

from precheck.pairs.backward_difference import backward_difference, repeated_otherwise
from precheck.pairs.callers import asking, giving_numbers, grouping
from precheck.pairs.comparison import REFUSALS, Comparison
from precheck.pairs.contents import Contents
from precheck.pairs.couples import Couple, Couples, by_results, reordered
from precheck.pairs.excuses import Differs, Excuses, Off, order_is_known
from precheck.pairs.floors import PARTED, relative
from precheck.pairs.handed_on import wrong_further
from precheck.pairs.intermediates import Intermediates, ingredients
from precheck.pairs.lent_weights import with_own_weights
from precheck.pairs.module_dataflow import Passage, Passages
from precheck.pairs.place import FLOAT32, Place, placed_at
from precheck.pairs.same_code import known_right, peers, weight_of_another_form
from precheck.pairs.sides import Side


def first_difference(comparison: Comparison) -> Place | None:
    """The place from which on the exact runs differ, or None if no module shows it."""
    for dtype in dict.fromkeys((torch.float64, comparison.dtype)):
        with contextlib.suppress(*REFUSALS):
            return _parted(comparison, dtype)
    return None


def _parted(comparison: Comparison, dtype: torch.dtype) -> Place | None:
    ours, theirs = both(comparison, lambda side: side.once(dtype), whole=comparison.aligned is None)
    ours, theirs = with_own_weights(comparison, ours, theirs)
    modules = comparison.matching.modules
    modules |= by_results(comparison.matching, ours, theirs, {name: type(each) for name, each in comparison.other.job.model.named_modules()})
    contents = Contents(comparison, dtype, [each.tensor for each in ours])
    limit = PARTED * (1.0 if dtype is torch.float64 else FLOAT32)
    look = usual = _Look(ours, theirs, contents, limit, rows=comparison.aligned is None)
    first = look.first()
    if first is None:
        look = _Look(ours, theirs, contents, limit, rows=False)
        first = look.first()
    elif comparison.aligned is None:
        moved = _Look(ours, theirs, contents, limit, rows=True, moved=True)
        found = None if moved.differs(first[1]) else moved.first()
        if found is not None and order_is_known(comparison, look.forward, found, look.differs, moved.differs):
            look, first = moved, found
    behind = _backward(comparison, ours, theirs, usual.differs, dtype) if first is None else None
    if behind is not None or not look.off:
        return behind
    return _placed(comparison, look, look.off[0] if first is None else look.surely(first), ours, theirs)


def _placed(comparison: Comparison, look: _Look, off: Off, ours: Sequence[Passage], theirs: Sequence[Passage]) -> Place:
    """The place of the code that made the first wrong tensor."""
    (place, first), forward, modules, contents = off, look.forward, comparison.matching.modules, look.contents
    right = _right(forward[:place], look.coupled, look.differs, contents)
    module, given = _blamed(first, forward[:place], look.coupled, look.differs, contents, right)
    held = weight_of_another_form(comparison, module, right)
    module, given = (module, given) if held is None else held
    usual = any(_of_a_kind(comparison, each, first) and not look.at_fault(number, each) for number, each in look.off)
    home = next((each for each in _around(module) if each in modules), "")  # code without a counterpart lies in a block that has one
    equally_often = _calls(ours, modules.get(home)) == _calls(theirs, home) == _calls(theirs, module)
    made_here = first.tensor if first.kind == "in" and not first.given and first.maker == module else None
    by_op, own = equally_often and (held is not None or not given), first.kind == "out" and module == first.module
    found = placed_at(comparison, contents.dtype, module, contents, made_here, by_op=by_op, within=own)
    return dataclasses.replace(found, passed=None if usual else look.coupled(first), right=right - {module}, given=given)


class _Look:
    """What differs, by one way to pair the tensors of both models."""

    def __init__(
        self, ours: Sequence[Passage], theirs: Sequence[Passage], contents: Contents, limit: float, *, rows: bool, moved: bool = False
    ) -> None:  # fmt: skip
        self.contents, self.coupled = contents, Couples(ours, theirs, contents.comparison.matching, rows=rows, moved=moved)
        self.forward = [each for each in theirs if each.kind not in ("again", "back")]
        self.differs = _differs(self.coupled, limit)
        self.off: list[Off] = [(place, each) for place, each in enumerate(self.forward) if self.differs(each)]
        excuses = Excuses(contents.comparison, self.forward, self.coupled, self.differs, contents)
        self.at_fault = functools.cache(lambda place, passage: not excuses.hold(place, passage))

    def first(self) -> Off | None:
        """The first tensor that differs and is a fault."""
        return next((each for each in self.off if self.at_fault(*each)), None)

    def surely(self, first: Off) -> Off:
        """The first wrong tensor where this one may be right: with its axes in another order, which the model puts right, or without rows that are
        only left out, where the call that reads these returns wrong rows, so that its code is at fault for certain."""
        read = first[1]
        if _reordered(self.coupled(read)) and _certain(self.forward, read.module, self.coupled, self.differs):
            return next((each for each in self.off if self.at_fault(*each) and not _reordered(self.coupled(each[1]))), first)
        if read.kind == "in" and self.coupled.leaves_out(read):
            wrong = [each for each in self.off if self.at_fault(*each) and not self.coupled.leaves_out(each[1])]
            if any((each.kind, each.module, each.call) == ("out", read.module, read.call) for _, each in wrong):
                return wrong[0]
        return first


def _right(before: Sequence[Passage], coupled: Couples, differs: Differs, contents: Contents) -> frozenset[str]:
    """Modules that returned what model's did before. If they return another number of tensors, all of these must occur in `model`."""
    modules, found = coupled.matching.modules, dict[str, bool]()
    for each in before:
        if each.kind != "out":
            continue
        if each.module in modules and coupled.results[0].get(modules[each.module]) != coupled.results[1].get(each.module):
            found[each.module] = found.get(each.module, True) and contents.hold(each.tensor)
        elif coupled(each) is not None:
            found[each.module] = found.get(each.module, False) or not differs(each)
    return frozenset(module for module, right in found.items() if right)


def _around(module: str) -> list[str]:
    names = module.split(".")
    return [".".join(names[:depth]) for depth in range(len(names), 0, -1)]


def _calls(passages: Sequence[Passage], module: str | None) -> int:
    return max((each.call for each in passages if each.module == module), default=0)


def _backward(comparison: Comparison, ours: list[Passage], theirs: list[Passage], differs: Differs, dtype: torch.dtype) -> Place | None:
    modules = comparison.matching.modules
    if (again := repeated_otherwise(theirs)) is not None:
        return Place(again, modules.get(again), backward=True, repeated=True)
    behind = backward_difference(comparison, ours, theirs, differs, dtype)
    return None if behind is None else Place(behind, modules.get(behind), backward=True)


def _of_a_kind(comparison: Comparison, one: Passage, first: Passage) -> bool:
    """Whether two tensors are at the same place of modules of one class. If one of them differs and is no fault, the other's difference explains
    nothing."""
    modules = [comparison.other.job.model.get_submodule(each.module) for each in (one, first)]
    return (one.kind, one.place) == (first.kind, first.place) and type(modules[0]) is type(modules[1])


def both(comparison: Comparison, ran: Callable[[Side], object], *, whole: bool = False) -> tuple[list[Passage], list[Passage]]:
    """Runs both models once, and returns the tensors that pass between their modules, with `whole` also whole numbers."""
    found = []
    for side in (comparison.model, comparison.other):
        follower = Passages(side.job.model, whole=whole)
        with follower.followed() as passages:
            ran(side)
        found.append(passages)
    for some, changed in zip(found, (comparison.hidden, comparison.aligned), strict=True):
        if changed is not None:
            for each in some:
                each.tensor = changed(each.tensor)
    return found[0], found[1]


def unequal(comparison: Comparison) -> Place | None:
    """The first module of `other` whose bits differ under the precision, although rounding explains it. Fixing it gives equal bits."""
    if comparison.model.compiled or comparison.other.compiled:
        return None
    ours, theirs = both(comparison, lambda side: side.once_low())
    differs = _differs(Couples(ours, theirs, comparison.matching), 0.0)
    first = next((each for each in theirs if each.kind not in ("again", "back") and differs(each)), None)
    if first is None:
        return None
    module = first.module if first.kind == "out" else first.maker
    follower = Intermediates(comparison.other.job.model, {module}, own=bool([*comparison.other.job.model.get_submodule(module).children()]))
    with follower.followed():
        comparison.other.once_low()
    last = follower.made[-1] if follower.made else None
    return Place(module, comparison.matching.modules.get(module), last.line if last else "", last.op if last else "")


def _differs(coupled: Callable[[Passage], Couple | None], limit: float) -> Callable[[Passage], bool]:
    @functools.cache
    def differs(passage: Passage) -> bool:
        couple = coupled(passage)
        return couple is not None and (couple[0].shape != couple[1].shape or relative(*couple) > limit)

    return differs


def _reordered(couple: Couple | None) -> bool:
    """Whether both tensors have one shape, and hold the same numbers with their axes in another order, as between rows and columns."""
    return couple is not None and couple[0].shape == couple[1].shape and reordered(*couple) is not None


def _certain(
    forward: Sequence[Passage], turned: str, coupled: Callable[[Passage], Couple | None], differs: Callable[[Passage], bool]
) -> bool:  # fmt: skip
    """Whether a module has a fault for certain: it reads the same as model's and returns other numbers, in any order of axes. Another order of axes
    in a module `turned` before it is then one that the model itself puts right; if that module is a part of it, it may be the fault."""
    read: dict[tuple[str, int], list[bool]] = {}
    for each in forward:
        if each.kind != "out" and each.module:
            read.setdefault((each.module, each.call), []).append(coupled(each) is not None and not differs(each))
        elif turned == each.module or turned.startswith(f"{each.module}."):
            continue
        elif each.kind == "out" and all(read.get((each.module, each.call), [False])) and differs(each) and not _reordered(coupled(each)):
            return True
    return False


def _blamed(
    first: Passage, before: Sequence[Passage], coupled: Couples, differs: Differs, contents: Contents, right: frozenset[str]
) -> tuple[str, str]:  # fmt: skip
    """The module that made the difference, and what it gives wrongly, if that is known. If a module's input differs, it is the module that made the
    input, or the one that passed on the wrong tensor: one whose values occur in `model`, but are not what is read here. `right`: modules that
    returned the same as model's before."""
    if first.given:
        made = [each for each in before if (each.kind, each.module) == ("out", first.maker) and coupled(each) is not None]
        compared = bool(made) and not any(map(differs, made))
        return (first.caller if compared or contents.hold(first.tensor) else first.maker), ""
    if first.kind == "in" and first.caller != first.maker and contents.hold(first.tensor):
        return first.caller, ""
    passed_on = isinstance(contents.comparison.other.job.model.get_submodule(first.module), torch.nn.Identity)
    owner = first.module if first.kind == "out" and not passed_on else first.maker
    callers = {each.module: each.caller for each in before if each.kind in ("in", "whole")}
    less = owner
    while first.kind == "out" and less in callers and coupled.given_less(less):
        less = callers[less]
    if less != owner:
        return less, ""
    if first.kind == "out" and owner == first.module and (regroups := grouping(owner, before, coupled, contents.comparison)) is not None:
        return regroups, ""
    caller, given = asking(owner, before, coupled, contents, right)
    if caller is not None:
        return caller, given
    caller = giving_numbers(owner, before, coupled, contents)
    if caller is not None:
        return caller, ""
    if weight_of_another_form(contents.comparison, owner, right) is not None:
        return owner, ""  # the caller names the part that holds it
    inner = _unmatched(owner, before, coupled, contents, right)
    if inner is not None and first.kind == "in" and not _went_into(inner, first, owner, contents):
        inner = None
    if inner is None:
        inner = wrong_further(contents.comparison, owner, before, coupled, contents.dtype)
    return (owner if inner is None else inner), ""


def _unmatched(
    owner: str, before: Sequence[Passage], coupled: Couples, contents: Contents, right: frozenset[str]
) -> str | None:  # fmt: skip
    """The first module inside `owner` without a counterpart whose inputs occur in `model`, but whose result does not.

    Two kinds with `model`'s weights are innocent: a linear layer, which may compute more rows than `model`, and one of several that read the same and
    return results of one shape, such as experts for all tokens or parts of a sum. The module around them joins them. So is a part that returns what
    `model` has nowhere in a `right` module of the owner's class too: gates of another sign, say. So is what was `right` in an earlier call,
    and all parts of it, where `model` has no further call.
    """
    prefix, alike = f"{owner}." if owner else "", peers(contents.comparison, owner, right)
    inside = [each for each in right if each != owner and each.startswith(prefix)]
    made = [each for each in before if each.kind == "out" and each.module.startswith(prefix) and each.module != owner and _of_own_form(each, coupled)]
    taken: dict[tuple[str, int], list[Passage]] = {}
    for one in (each for each in before if each.kind == "in"):
        taken.setdefault((one.module, one.call), []).append(one)

    def reads(each: Passage) -> list[torch.Tensor]:
        return [one.tensor for one in taken.get((each.module, each.call), [])]

    def nowhere(each: Passage) -> bool:
        return each.kind == "out" and _of_own_form(each, coupled) and not contents.hold(each.tensor)

    known = [each for each in made if contents.hold(each.tensor)]
    contents.learn([tensor for each in known for tensor in reads(each)])
    off = [each for each in made if each not in known and not contents.hold(each.tensor)]
    for each in off:
        rivals = [reads(one) for one in off if one.module != each.module and one.tensor.shape == each.tensor.shape]
        beside = any(len(one) == len(reads(each)) and all(map(torch.equal, one, reads(each))) for one in rivals)
        innocent = (each.linear or beside) and contents.comparison.matching.agrees(each.module)
        part = each.module.removeprefix(prefix)
        innocent = innocent or any(one.module == f"{peer}.{part}" and nowhere(one) for peer in alike for one in before)
        innocent = innocent or any(f"{each.module}.".startswith(f"{one}.") for one in inside)
        read = {one.module for one in before if one.kind == "in" and (one.maker, one.maker_call) == (each.module, each.call) and one.given}
        innocent = innocent or bool(read & right)  # they were given it, and returned what model's do
        innocent = innocent or known_right(contents.comparison, each.module, right)
        if all(map(contents.hold, reads(each))) and not innocent:
            return each.module
    return None


def _went_into(part: str, passage: Passage, owner: str, contents: Contents) -> bool:
    """Whether something that a part of `owner` made went into a tensor, as far as can be seen."""
    follower, side = Intermediates(contents.comparison.other.job.model, {owner}, own=False), contents.comparison.other
    with contextlib.suppress(*REFUSALS), follower.followed():
        side.forward(contents.dtype)
    found = ingredients(follower.made, passage.tensor)
    return not found or any(f"{each}.".startswith(f"{part}.") for each in found)


def _of_own_form(result: Passage, coupled: Couples) -> bool:
    """Whether a result has no counterpart in `model`, or one of another form: shares of all experts, say, for those of the chosen ones."""
    couple = coupled(result)
    return couple is None or (not coupled.placed(result) and (couple[0].shape != couple[1].shape or relative(*couple) > PARTED))
