"""Finds the module where two backward passes differ first, of two models whose forward passes agree."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from precheck.pairs.capture import written_out
from precheck.pairs.comparison import REFUSALS, Comparison
from precheck.pairs.floors import agree, unlike
from precheck.pairs.intermediates import Intermediates, alike, signature
from precheck.pairs.module_dataflow import Passage, depends
from precheck.pairs.same_code import known_right
from precheck.pairs.sides import Side

Pair = tuple[Passage, Passage]
"""A tensor of `other`, and that of `model` at the same place."""
Gradients = dict[tuple[str, int], tuple[list[torch.Tensor | None], list[torch.Tensor | None]]]
"""Gradients of the outputs and of the inputs of each call of a module. Calls are counted in the order of the backward pass."""


def backward_difference(
    comparison: Comparison, ours: Sequence[Passage], theirs: Sequence[Passage], differs: Callable[[Passage], bool], dtype: torch.dtype
) -> str | None:
    """The module of `other` whose gradient differs or is missing first in the backward pass, or None if none is."""
    modules, back = comparison.matching.modules, {each.key: each for each in theirs if each.kind == "back"}
    known = {each.key: each for each in ours}
    found = ((each, known.get((each.kind, modules.get(each.module, ""), each.call, each.place))) for each in theirs)
    pairs = [(each, there) for each, there in found if there is not None]
    if (cutter := next(_cuts(comparison, pairs), None)) is not None:
        return cutter
    taken = {each.key for each in theirs if each.kind == "out"}
    otherwise = {("back", *each.key[1:]) for each in theirs if each.kind == "out" and differs(each)}  # of another form, and so are their gradients
    called = {each.module for each in theirs if each.kind == "out"}
    named = {wanted: name for name, wanted in reversed(modules.items()) if name in called}  # if two match one, the one that is called
    order = [("back", named[each.module], each.call, each.place) for each in ours if each.kind == "back" and each.module in named]
    off = [key for key in order if ("out", *key[1:]) in taken and (key not in back or (differs(back[key]) and key not in otherwise))]
    given = {("back", *each.key[1:]) for each in ours if each.kind == "out"} - {each.key for each in ours if each.kind == "back"}
    more = [key for key in back if ("back", modules.get(key[1]), *key[2:]) in given]  # a gradient that only `other` has
    if (teacher := _teaches(comparison, pairs, [*off, *more], dtype)) is not None:
        return teacher
    agreeing = {key[1] for key in order if key in back} - {key[1] for key in off}
    holders = (_holder(name, {key[1] for key in order}) for name in _parameters_off(comparison))
    owner = next((name for name in holders if name in agreeing), None)
    if owner is not None:
        lenders = {each.maker for each in theirs if each.kind == "lent"}
        if not known_right(comparison, owner, ()):
            return owner
        return lenders.pop() if len(lenders) == 1 else _other_reader(comparison, owner, dtype)
    if not off and not more:
        return None
    _, first, call, _ = (off or more)[0]
    read = {(each.module, each.maker, each.maker_call) for each in ours if each.kind == "in" and each.given}
    readers = [each.module for each in theirs if each.kind == "in" and each.given and (each.maker, each.maker_call) == (first, call)]
    alike = [each for each in readers if each in agreeing and (modules.get(each), modules.get(first), call) in read]
    alike = [each for each in alike if not known_right(comparison, each, ())]  # the same readers as in model
    givers = [each.module for each in theirs if each.kind == "out" and each.maker == first]
    outermost = min((each for each in givers if f"{first}.".startswith(f"{each}.")), key=len, default=first)
    results = [each.tensor for each in theirs if each.kind == "out" and (each.module, each.call) == (first, call)]
    surely = next(itertools.chain(_cut_off(pairs, results), alike), None)
    return surely if surely is not None else _through(comparison, dtype, _asked(modules, pairs, theirs)) or _caller(outermost, theirs)


def _holder(module: str, known: Collection[str]) -> str:
    """The innermost module around this one, or itself, that `model` has too."""
    while module and module not in known:
        module = module.rpartition(".")[0]
    return module


def _cuts(comparison: Comparison, pairs: Sequence[Pair]) -> Iterator[str]:
    """Whose code cuts off or changes a gradient where that of `model` does not, or the other way round: it lends a module weights without one, calls
    it without recording any, as under `torch.no_grad`, puts a hook on a result, or returns a result that passes on none, although what it is given
    does. A function with a backward pass of its own records none either: its weights have a gradient all the same."""
    yield from (each.maker for each, there in pairs if each.kind == "lent" and (each.gradient is None) != (there.gradient is None))
    captured = comparison.model.once_captured(), comparison.other.once_captured()
    taught = [each for each in comparison.subjects if each.kind == "parameter-gradient"]
    one_sided = [each.module for each in taught if (each.of_model(captured[0]) is None) != (each.of_other(captured[1]) is None)]
    for each, there in pairs:
        if each.kind in ("in", "whole"):
            wanted = {one.key for one in there.held if one.wanted}
            yield from (one.maker for one in each.held if one.key in wanted and not one.wanted)  # in an object
            if each.recording != there.recording and any(f"{one}.".startswith(f"{each.module}.") for one in one_sided):
                yield each.caller
    for each, there in pairs:
        if each.kind == "out" and _equal([each.gradient], [there.gradient]) and not _equal([each.handed_back], [there.handed_back]):
            yield each.caller
    otherwise = set[tuple[str, int]]()
    for each, there in pairs:
        if each.kind == "in" and (there.wanted, there.recording) != (each.wanted, each.recording):
            otherwise.add((each.module, each.call))
        cut = each.kind == "out" and there.wanted and not each.wanted and each.maker == each.module
        if cut and (each.module, each.call) not in otherwise and any(_present([there.gradient])):
            yield each.module


def _other_reader(comparison: Comparison, owner: str, dtype: torch.dtype) -> str:
    """Whose code reads a weight with a wrong gradient, if its `owner` is a layer of torch with a right one for its result: other code that reads the
    weight, as a head on the table of words. Otherwise the owner."""
    model = comparison.other.job.model
    weights, follower = [signature(each) for each in model.get_submodule(owner).parameters()], Intermediates(model, {""}, own=False)
    with contextlib.suppress(*REFUSALS), follower.followed():
        comparison.other.forward(dtype)
    read = (each.module for each in follower.made if any(alike(one, weight) for one in each.operands for weight in weights))
    return next((each for each in dict.fromkeys(read) if each != owner and not known_right(comparison, each, ())), owner)


def _teaches(comparison: Comparison, pairs: Sequence[Pair], off: Sequence[tuple[str, str, int, int]], dtype: torch.dtype) -> str | None:
    """The code that gives a module a tensor whose gradient it teaches, where model's module is given the same numbers cut off from it. Only if the
    module passes on a gradient, and a result with a wrong one went into the tensor."""
    results = [each for each, _ in pairs if each.kind == "out" and ("back", *each.key[1:]) in off]
    more = [each for each, there in pairs if each.kind == "in" and each.wanted and not there.wanted and any(depends(each, one) for one in results)]
    passing = set[str]()
    with contextlib.suppress(*REFUSALS):
        passing = {name for (name, _), (_, inputs) in (_gradients(comparison.other, dtype) if more else {}).items() if any(_present(inputs))}
    return next((each.caller for each in more if each.module in passing), None)


def _cut_off(pairs: Sequence[Pair], results: Sequence[torch.Tensor]) -> Iterator[str]:
    """The code that gives a module a copy without a gradient of one of these results, where model's module is given one with a gradient."""
    for each, there in pairs:
        if each.kind == "in" and there.wanted and not each.given and not each.wanted and any(map(each.tensor.equal, results)):
            yield each.caller


def _asked(modules: Mapping[str, str], pairs: Sequence[Pair], theirs: Sequence[Passage]) -> list[str]:
    """Modules whose results have the gradients of model's, and whose inputs all require one. They have to pass on some."""
    needless = {each.module for each in theirs if each.kind == "in" and not each.wanted}
    taught = [each for each in theirs if each.kind == "out" and each.gradient is not None and each.module in modules]
    right = {id(each) for each, there in pairs if agree(each.gradient, there.gradient)}
    wrong = needless | {each.module for each in taught if id(each) not in right}
    return [name for name in dict.fromkeys(each.module for each in taught) if name and name not in wrong]


def repeated_otherwise(theirs: Sequence[Passage]) -> str | None:
    """The module whose code gives other numbers to a part of it as the backward pass repeats it, as with other random numbers."""
    for each in (one for one in theirs if one.kind == "again"):
        known = [one for one in theirs if one.kind == "in" and (one.module, one.place) == (each.module, each.place)]
        if known and not any(agree(each.tensor, one.tensor) for one in known):
            return known[0].caller
    return None


def _through(comparison: Comparison, dtype: torch.dtype, asked: Sequence[str]) -> str:
    """The innermost module that is given the gradients of its results that model's is given, and passes on others to the inputs. "" if none does.

    Of a sum, the gradient of a tensor is not that of what reads it: it says nothing of one reader alone. Hooks of torch do, if the code permits them.
    Modules that are `asked` have to pass on some.
    """
    found: list[str] = []
    with contextlib.suppress(*REFUSALS):
        ours, theirs = (_gradients(side, dtype) for side in (comparison.model, comparison.other))
        for (name, call), (outputs, inputs) in theirs.items():
            wanted = ours.get((comparison.matching.modules.get(name, ""), call))
            given = name and wanted is not None and any(each is not None for each in outputs) and _equal(outputs, wanted[0])
            if given and wanted is not None and [*map(_present, (outputs, inputs))] == [*map(_present, wanted)] and not _equal(inputs, wanted[1]):
                found.append(name)
        passing = [{name for (name, _), (_, inputs) in some.items() if any(_present(inputs))} for some in (theirs, ours)]
        found += [name for name in asked if name not in passing[0] and comparison.matching.modules[name] in passing[1]]
    return next((each for each in found if not any(other.startswith(f"{each}.") for other in found)), "")


def _gradients(side: Side, dtype: torch.dtype) -> Gradients:
    found: Gradients = {}
    handles = []

    def following(name: str) -> Any:
        def hook(module: torch.nn.Module, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
            call = sum(known == name for known, _ in found)
            found[name, call] = tuple([None if each is None else written_out(each) for each in some] for some in (outputs, inputs))  # type: ignore[assignment]

        return hook

    for name, module in side.job.model.named_modules():
        if not isinstance(module, torch.jit.ScriptModule):
            handles.append(module.register_full_backward_hook(following(name)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of modules none of whose inputs requires a gradient
            side.once(dtype)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _present(gradients: Sequence[torch.Tensor | None]) -> list[bool]:
    """Which gradients are there. An input without one, or of zeros as torch's hooks may give, was cut off by the code that made it."""
    return [each is not None and bool(each.count_nonzero()) for each in gradients]


def _equal(some: Sequence[torch.Tensor | None], others: Sequence[torch.Tensor | None]) -> bool:
    """Whether two lists of gradients agree where both are there."""
    both = [(a, b) for a, b in zip(some, others, strict=False) if a is not None and b is not None]
    return len(some) == len(others) and all(agree(a, b) for a, b in both)


def _caller(module: str, passages: Sequence[Passage]) -> str:
    """The module whose code calls this one. If it takes no tensors, the nearest parent that is called (a ModuleList is not)."""
    called = {each.module for each in passages if each.kind == "out"}
    above = [module.rsplit(".", count)[0] if count <= module.count(".") else "" for count in range(1, module.count(".") + 2)]
    holder = next((each for each in above if each in called), "")
    return next((each.caller for each in passages if each.kind == "in" and each.module == module), holder)


def _parameters_off(comparison: Comparison) -> Iterator[str]:
    """Modules with a parameter whose gradient was judged to differ, and differs here too. Excludes gradients that are zero in exact arithmetic."""
    captured = comparison.model.once_captured(), comparison.other.once_captured()
    for subject in unlike(comparison.subjects, *captured):
        if subject.kind == "parameter-gradient" and comparison.verdicts.get(subject) not in ("bitwise", "rounding", "model less accurate"):
            yield subject.module
