"""Finds the module where two backward passes differ first, of two models whose forward passes agree."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from precheck.formats import ONE_ROUNDING
from precheck.pairs.capture import written_out
from precheck.pairs.comparison import REFUSALS, Comparison
from precheck.pairs.floors import relative
from precheck.pairs.module_dataflow import Passage, depends
from precheck.pairs.same_code import known_right
from precheck.pairs.sides import Side
from precheck.pairs.weight_readers import Readers

PARTED = ONE_ROUNDING * 2.0**-20
"""Relative difference from which two exact tensors differ: the rounding that float32 is allowed (`analysis.noise.REASSOCIATED`)."""
Gradients = dict[tuple[str, int], tuple[list[torch.Tensor | None], list[torch.Tensor | None]]]
"""Gradients of the outputs and of the inputs of each call of a module. Calls are counted in the order of the backward pass."""


def backward_difference(
    comparison: Comparison, ours: Sequence[Passage], theirs: Sequence[Passage], differs: Callable[[Passage], bool], dtype: torch.dtype
) -> str | None:
    """The module of `other` whose gradient differs or is missing first in the backward pass, or None if none is."""
    modules, back = comparison.matching.modules, {each.key: each for each in theirs if each.kind == "back"}
    for found in (_lends_otherwise(modules, ours, theirs), _switches_off(comparison, ours, theirs), _changes_by_hook(modules, ours, theirs)):
        if found is not None:
            return found
    if (maker := _returns_untaught(modules, ours, theirs)) is not None:
        return maker
    taken = {each.key for each in theirs if each.kind == "out"}
    unlike = {("back", *each.key[1:]) for each in theirs if each.kind == "out" and differs(each)}  # of another form, and so are their gradients
    called = {each.module for each in theirs if each.kind == "out"}
    named = {wanted: name for name, wanted in reversed(modules.items()) if name in called}  # if two match one, the one that is called
    order = [("back", named[each.module], each.call, each.place) for each in ours if each.kind == "back" and each.module in named]
    off = [key for key in order if ("out", *key[1:]) in taken and (key not in back or (differs(back[key]) and key not in unlike))]
    given = {("back", *each.key[1:]) for each in ours if each.kind == "out"} - {each.key for each in ours if each.kind == "back"}
    more = [key for key in back if ("back", modules.get(key[1]), *key[2:]) in given]  # a gradient that only `other` has
    if (teacher := _teaches(comparison, ours, theirs, [*off, *more], dtype)) is not None:
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
    surely = _cut_off(modules, ours, theirs, (first, call))
    surely = next(iter(alike), None) if surely is None else surely
    return surely if surely is not None else _through(comparison, dtype, _asked(modules, ours, theirs)) or _caller(outermost, theirs)


def _holder(module: str, known: Collection[str]) -> str:
    """The innermost module around this one, or itself, that `model` has too."""
    while module and module not in known:
        module = module.rpartition(".")[0]
    return module


def _returns_untaught(modules: Mapping[str, str], ours: Sequence[Passage], theirs: Sequence[Passage]) -> str | None:
    """The first module whose result passes on no gradient where that of model's does, and gets one, if all that the module is given passes one on as
    in `model`."""
    known = {each.key: each for each in ours}

    def there(each: Passage) -> Passage | None:
        return known.get((each.kind, modules.get(each.module, ""), each.call, each.place))

    given: dict[tuple[str, int], bool] = {}
    for each in theirs:
        one = there(each)
        if each.kind == "in":
            alike = one is None or (one.wanted, one.recording) == (each.wanted, each.recording)
            given[each.module, each.call] = given.get((each.module, each.call), True) and alike
        taught = one is not None and one.wanted and one.gradient is not None and bool(one.gradient.count_nonzero())
        if each.kind == "out" and taught and not each.wanted and each.maker == each.module and given.get((each.module, each.call), True):
            return each.module
    return None


def _lends_otherwise(modules: Mapping[str, str], ours: Sequence[Passage], theirs: Sequence[Passage]) -> str | None:
    """The code that lends a module weights that get a gradient where those that model's is lent get none, or the other way round."""
    known = {each.key: each.gradient is None for each in ours if each.kind == "lent"}
    lent = [(each, known.get(("lent", modules.get(each.module, ""), each.call, each.place))) for each in theirs if each.kind == "lent"]
    return next((each.maker for each, bare in lent if bare is not None and bare != (each.gradient is None)), None)


def _changes_by_hook(modules: Mapping[str, str], ours: Sequence[Passage], theirs: Sequence[Passage]) -> str | None:
    """The code that puts a hook on a module's result which changes its gradient otherwise than in `model`."""
    known = {each.key: each for each in ours}
    for each in theirs:
        there = known.get((each.kind, modules.get(each.module, ""), each.call, each.place)) if each.kind == "out" else None
        if there is not None and each.handed_back is not None and there.handed_back is not None:
            if _equal([each.gradient], [there.gradient]) and not _equal([each.handed_back], [there.handed_back]):
                return each.caller
    return None


def _other_reader(comparison: Comparison, owner: str, dtype: torch.dtype) -> str:
    """Whose code reads a weight with a wrong gradient, if its `owner` is a layer of torch with a right one for its result: other code that reads the
    weight, as a head on the table of words. Otherwise the owner."""
    model = comparison.other.job.model
    weights = [f"{owner}.{name}" for name, _ in model.get_submodule(owner).named_parameters()]
    found: list[str] = []
    with contextlib.suppress(*REFUSALS):
        found = Readers(model, weights).during(lambda: comparison.other.once(dtype))
    return next((each for each in found if each != owner and not known_right(comparison, each, ())), owner)


def _switches_off(comparison: Comparison, ours: Sequence[Passage], theirs: Sequence[Passage]) -> str | None:
    """The code that calls a module without recording gradients, as under `torch.no_grad`, where model's call records some. Or the other way round. A
    function with a backward pass of its own does so too: its weights have a gradient all the same."""
    known, modules = {each.key: each for each in ours}, comparison.matching.modules
    captured = comparison.model.once_captured(), comparison.other.once_captured()
    taught = [
        (each.module, each.of_model(captured[0]), each.of_other(captured[1])) for each in comparison.subjects if each.kind == "parameter-gradient"
    ]
    one_sided = [module for module, one, two in taught if (one is None) != (two is None)]
    for each in theirs:
        there = known.get((each.kind, modules.get(each.module, ""), each.call, each.place)) if each.kind in ("in", "whole") else None
        wanted = {one.key for one in there.held if one.wanted} if there is not None else set()
        cut = [one.maker for one in each.held if one.key in wanted and not one.wanted]  # from the gradient, in an object
        if cut:
            return cut[0]
        if there is not None and each.recording != there.recording and any(f"{one}.".startswith(f"{each.module}.") for one in one_sided):
            return each.caller
    return None


def _teaches(
    comparison: Comparison, ours: Sequence[Passage], theirs: Sequence[Passage], off: Sequence[tuple[str, str, int, int]], dtype: torch.dtype
) -> str | None:  # fmt: skip
    """The code that gives a module a tensor whose gradient it teaches, where model's module is given the same numbers cut off from it. Only if the
    module passes on a gradient, and a result with a wrong one went into the tensor."""
    known = {each.key for each in ours if each.kind == "in" and not each.wanted}
    modules, results = comparison.matching.modules, [each for each in theirs if each.kind == "out" and ("back", *each.key[1:]) in off]
    more = [each for each in theirs if each.kind == "in" and each.wanted and ("in", modules.get(each.module), each.call, each.place) in known]
    more = [each for each in more if any(depends(each, result) for result in results)]
    passing = set[str]()
    with contextlib.suppress(*REFUSALS):
        passing = {name for (name, _), (_, inputs) in (_gradients(comparison.other, dtype) if more else {}).items() if any(_present(inputs))}
    return next((each.caller for each in more if each.module in passing), None)


def _cut_off(modules: Mapping[str, str], ours: Sequence[Passage], theirs: Sequence[Passage], made: tuple[str, int]) -> str | None:
    """The code that gives a module a copy without a gradient of what the call `made` returned, where model's module is given one with a gradient."""
    results = [each.tensor for each in theirs if each.kind == "out" and (each.module, each.call) == made]
    wanted = {(each.module, each.call, each.place) for each in ours if each.kind == "in" and each.wanted}
    copies = [each for each in theirs if each.kind == "in" and not each.given and not each.wanted and any(map(each.tensor.equal, results))]
    return next((each.caller for each in copies if (modules.get(each.module), each.call, each.place) in wanted), None)


def _asked(modules: Mapping[str, str], ours: Sequence[Passage], theirs: Sequence[Passage]) -> list[str]:
    """Modules whose results have the gradients of model's, and whose inputs all require one. They have to pass on some."""
    known = {each.key: each for each in ours}
    needless = {each.module for each in theirs if each.kind == "in" and not each.wanted}
    right: dict[str, bool] = {}
    for each in theirs:
        if each.kind == "out" and each.gradient is not None and each.module in modules:
            wanted = known.get(("out", modules[each.module], each.call, each.place))
            same = wanted is not None and wanted.gradient is not None and _equal([each.gradient], [wanted.gradient])
            right[each.module] = right.get(each.module, True) and same
    return [name for name, all_right in right.items() if name and all_right and name not in needless]


def repeated_otherwise(theirs: Sequence[Passage]) -> str | None:
    """The module whose code gives other numbers to a part of it as the backward pass repeats it, as with other random numbers."""
    given: dict[tuple[str, int], list[Passage]] = {}
    for each in theirs:
        if each.kind == "in":
            given.setdefault((each.module, each.place), []).append(each)
    for each in theirs:
        known = given.get((each.module, each.place), [])
        if each.kind == "again" and known and not any(_equal([each.tensor], [one.tensor]) for one in known):
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
            present = wanted is not None and all(map(_alike_present, (outputs, inputs), wanted))
            if given and present and wanted is not None and not _equal(inputs, wanted[1]):
                found.append(name)
        passing, modules = ({name for name, _ in theirs}, {name for name, _ in ours}), comparison.matching.modules
        found += [name for name in asked if name not in passing[0] and modules[name] in passing[1]]
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


def _alike_present(some: Sequence[torch.Tensor | None], others: Sequence[torch.Tensor | None]) -> bool:
    return _present(some) == _present(others)


def _equal(some: Sequence[torch.Tensor | None], others: Sequence[torch.Tensor | None]) -> bool:
    """Whether two lists of gradients agree where both are there."""
    both = [(a, b) for a, b in zip(some, others, strict=False) if a is not None and b is not None]
    return len(some) == len(others) and all(a.shape == b.shape and relative(a, b) <= PARTED for a, b in both)


def _caller(module: str, passages: Sequence[Passage]) -> str:
    """The module whose code calls this one. If it takes no tensors, the nearest parent that is called (a ModuleList is not)."""
    called = {each.module for each in passages if each.kind == "out"}
    above = [module.rsplit(".", count)[0] if count <= module.count(".") else "" for count in range(1, module.count(".") + 2)]
    holder = next((each for each in above if each in called), "")
    return next((each.caller for each in passages if each.kind == "in" and each.module == module), holder)


def _parameters_off(comparison: Comparison) -> Iterator[str]:
    """Modules with a parameter whose gradient was judged to differ, and differs here too. Excludes gradients that are zero in exact arithmetic."""
    ours, theirs = (side.once_captured() for side in (comparison.model, comparison.other))
    for subject in comparison.subjects:
        if subject.kind == "parameter-gradient" and comparison.verdicts.get(subject) not in ("bitwise", "rounding", "model less accurate"):
            a, b = subject.of_model(ours), subject.of_other(theirs)
            if a is None or b is None or a.shape != b.shape or relative(b, a) > PARTED:
                yield subject.module
