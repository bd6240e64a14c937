"""Finds whose code gives a module something wrong, where the module's own code is right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from precheck.pairs.comparison import Comparison
from precheck.pairs.contents import Contents
from precheck.pairs.couples import Calls, Couples
from precheck.pairs.floors import agree, range_of
from precheck.pairs.held_state import Held, intruders
from precheck.pairs.module_dataflow import Passage, real_copy
from precheck.pairs.replays import Wrong, wrongly_given
from precheck.pairs.same_code import by_definition, known_right, peers, rows_in_order, same_layer_of_torch, siblings
from precheck.pairs.transplants import Call, Transplant, is_absent, transplanted


def asking(
    owner: str, before: Sequence[Passage], coupled: Couples, contents: Contents, right: frozenset[str]
) -> tuple[str | None, str]:  # fmt: skip
    """The code that calls `owner`, if the code of `owner` is right: it returns what model's does once it is given what model's is. Or its inputs have
    no counterpart in `model`, and it has the code of a module that is right. Also what it is given wrongly, if that is known."""
    given = [each for each in before if each.kind == "in" and each.module == owner]
    given = [each for each in given if each.call == given[-1].call]
    if not given and (same_layer_of_torch(contents.comparison, owner) or by_definition(contents.comparison, owner)):
        given = [each for each in before if each.kind == "whole" and each.module == owner][-1:]  # these alone say what it computes
        if any(agree(*(coupled(each) or (None, None))) for each in given) and not rows_in_order(contents.comparison, owner):
            return None, ""  # the same rows of a table in another order
    if not given:
        return None, ""
    if owner in right:  # in an earlier call, as others of its class may have been: what they are given now may need code that did not run then
        right = right & {each.module for each in before if each.kind == "out" and each.call == given[-1].call}
    unplaced = not all(map(coupled.placed, given)) and known_right(contents.comparison, owner, right)
    held = next((each.held for each in given if each.held), ())
    if (intruder := _intruder(owner, given[-1].call, held, before, coupled)) is not None:
        return intruder, ""
    tried = None if unplaced else transplanted(contents.comparison, Call(owner, given[-1].call, held), coupled, contents.dtype)
    tried = None if tried is not None and not tried.right and by_definition(contents.comparison, owner) else tried
    if tried is not None and not tried.right:
        found = _with_wrong_argument(owner, given[-1].call, before, coupled, contents, right)
        resized = found is None and _of_another_size(owner, given[-1].call, before, coupled, contents, right)
        return (given[-1].caller if resized else found), ""
    if tried is not None and _usually_absent(contents, owner, tried, right):
        return None, ""
    if tried is not None and tried.makers:
        if f"{tried.makers[0]}.".startswith(f"{owner}."):
            return None, ""
        if not tried.state or not all(map(contents.hold, tried.state)):  # else it is right in itself, and not what is read here
            return tried.makers[0], ""
    if tried is not None and tried.words and (maker := _wrong_flags(before, coupled)) is not None:
        return maker, ""
    caller, words = asking(given[-1].caller, before, coupled, contents, right)
    return (given[-1].caller, tried.words if tried else "") if caller is None else (caller, words)


def _with_wrong_argument(
    owner: str, number: int, before: Sequence[Passage], coupled: Couples, contents: Contents, right: frozenset[str]
) -> str | None:  # fmt: skip
    """The code that gives `owner`, or a module around it, one wrong tensor, without which that module returns what model's does. All code in it is
    right then. A result of another module, whose numbers `model` has nowhere or in another order, is the fault of that module."""
    module, comparison = owner, contents.comparison
    while module:
        read = [each for each in before if each.kind in ("in", "whole") and (each.module, each.call) == (module, number)]
        if not read:
            return None
        caller = read[-1].caller
        wrong = wrongly_given(comparison, module, number, coupled, right, contents.dtype)
        if wrong is not None:
            found = _made_wrong(wrong, read, before, contents)
            further = None if found is not None else asking(caller, before, coupled, contents, right)[0]
            return found if found is not None else caller if further is None else further
        module = caller
        number = next((each.call for each in reversed(before) if each.kind in ("in", "whole") and each.module == caller), 0)
    return None


def _of_another_size(owner: str, number: int, before: Sequence[Passage], coupled: Couples, contents: Contents, right: frozenset[str]) -> bool:
    """Whether the call is given a tensor of another size than the same part of a right block is in its call of that number, where `model` gives both
    the same sizes. Its own code has no part in that."""

    def sizes(of: Iterable[Passage], module: str | None, call: int) -> dict[tuple[str, int], tuple[int, ...]]:
        return {(each.kind, each.place): each.shape for each in of if (each.module, each.call) == (module, call) and each.kind in ("in", "whole")}

    modules, here = coupled.matching.modules, sizes(before, owner, number)
    for each in siblings(contents.comparison.other.job.model, owner):
        ours = [sizes(coupled.known.values(), modules.get(name), 1) for name in (owner, each)]
        there = sizes(before, each, number)
        if each in right and ours[0] and ours[0] == ours[1] and there.keys() == here.keys():
            return there != here
    return False


def _made_wrong(wrong: Wrong, read: Sequence[Passage], before: Sequence[Passage], contents: Contents) -> str | None:
    """The module whose result is the wrong argument, or has its numbers in its order: the code between has then changed none, as where it pads a
    table by nothing. None if `model` has these numbers, so that the code between has chosen the wrong ones."""
    if wrong.value is None:
        return None
    now = real_copy(wrong.value)
    given = [each for each in read if each.given and each.shape == tuple(now.shape) and torch.equal(each.tensor, now)]
    mask = now.dtype is torch.bool
    made = [each for each in before if each.kind == ("flags" if mask else "out") and each.maker == each.module and each.tensor.numel() == now.numel()]
    made = [each for each in made if torch.equal(each.tensor.flatten().double(), now.flatten().double())]
    return next((each.maker for each in (*given, *made) if mask or wrong.turned or not contents.hold_whole(each.tensor)), None)


def grouping(module: str, before: Sequence[Passage], coupled: Couples, comparison: Comparison) -> str | None:
    """The code that calls a module, or one around it, on groups of other sizes than `model` does: on a whole batch, say, where `model` norms each
    half. Only of a layer of torch that is right, and has read what model's has: then nothing else can differ."""
    wanted = coupled.matching.modules.get(module)
    if wanted is None or not same_layer_of_torch(comparison, module):
        return None
    read = [each for each in before if each.kind == "in" and each.module == module]
    counts = {_numbers(calls, each) for calls, each in zip(coupled.calls, (wanted, module), strict=True)}
    if not read or len(counts) > 1 or not all(agree(*(coupled(each) or (None, None))) for each in read):
        return None
    callers = {each.module: each.caller for each in before if each.kind in ("in", "whole")}
    while module and module in callers and (wanted := coupled.matching.modules.get(module)) is not None:
        caller = callers[module]
        around = coupled.matching.modules.get(caller)
        if around is None:
            return None
        ours, theirs = (
            [_count(calls, each) for each in pair] for calls, pair in zip(coupled.calls, ((wanted, around), (module, caller)), strict=True)
        )
        if ours[0] * theirs[1] != theirs[0] * ours[1]:
            return caller
        module = caller
    return None


def _numbers(calls: Calls, module: str) -> int:
    """How many numbers all calls of a module are given."""
    return sum(each.tensor.numel() for (kind, name, _), some in calls.items() if (kind, name) == ("in", module) for each in some)


def _count(calls: Calls, module: str) -> int:
    """How often a module is called."""
    return len(calls.get(("out", module, 0), [])) if module else 1


def giving_numbers(owner: str, before: Sequence[Passage], coupled: Couples, contents: Contents) -> str | None:
    """The code that gives whole numbers, such as places, which `model` has nowhere, to a part that `model` lacks, and that makes what `owner` is
    given: a table, say. The table is unknown, so that these numbers are the last values before it that can be compared."""
    read = [each for each in before if (each.kind, each.module) == ("in", owner) and each.given and not contents.hold(each.tensor)]
    makers = {each.maker for each in read if each.maker not in coupled.matching.modules}
    known = [each.tensor for each in coupled.known.values() if each.kind == "whole" and each.tensor.dim()]
    for each in before:
        if each.kind != "whole" or each.module not in makers or not each.tensor.dim():
            continue
        alike = [one for one in known if one.dtype == each.tensor.dtype and one.shape[:-1] == each.tensor.shape[:-1]]
        if alike and not any(range_of(one, each.tensor) is not None for one in alike):
            return each.caller
    return None


def _intruder(owner: str, call: int, held: Sequence[Held], before: Sequence[Passage], coupled: Couples) -> str | None:
    """The code outside of `owner` that has written to a state which otherwise only `owner` writes. None if it does so in `model` too, or for calls
    before."""
    there = coupled.known.get(("in", coupled.matching.modules.get(owner, ""), call, 0))
    usual = any(intruders(each.held, each.module) for each in before if each.kind == "in" and (each.module, each.call) != (owner, call))
    found = intruders(held, owner)
    return found[0] if found and not usual and not (there is not None and intruders(there.held, there.module)) else None


def _usually_absent(contents: Contents, owner: str, tried: Transplant, right: frozenset[str]) -> bool:
    """Whether an argument is there in one model alone that modules of owner's class are called without too, and are right."""
    comparison, modules = contents.comparison, contents.comparison.matching.modules
    known = [each for each in peers(comparison, owner, right) if each in modules] if tried.absent else []
    return any(is_absent(comparison, each, modules[each], tried.absent, contents.dtype) for each in known[:1])


def _wrong_flags(before: Sequence[Passage], coupled: Couples) -> str | None:
    """The first module that returns other whole numbers or truth values than model's, such as a mask. Truth values may mean the opposite in one
    model."""
    for each in before:
        wanted = coupled.matching.modules.get(each.module)
        there = coupled.known.get((each.kind, wanted, each.call, each.place)) if each.kind == "flags" and wanted is not None else None
        if (
            there is None
            or there.tensor.shape != each.tensor.shape
            or there.tensor.dtype != each.tensor.dtype
            or torch.equal(there.tensor, each.tensor)
        ):
            continue
        if each.tensor.dtype is not torch.bool or not torch.equal(there.tensor, ~each.tensor):
            return each.module
    return None
