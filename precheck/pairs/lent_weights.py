"""Completes the record of weights that calls were lent, so that a call on lent weights can be compared with one on the module's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from precheck.pairs.comparison import Comparison
from precheck.pairs.module_dataflow import Passage, floats, real_copy

Call = tuple[str, int]
"""A module and which call of it."""


def with_own_weights(comparison: Comparison, ours: list[Passage], theirs: list[Passage]) -> tuple[list[Passage], list[Passage]]:
    """Both records, in which a call has its module's own weights if the matching call of the other model was lent some.

    One model lends weights for a call, as `torch.func.functional_call` does, and the other forgets to. What the call gets is then another: the
    weights. As their maker counts the code of `other` that should lend them, which is the counterpart of the code that lends in `model`.
    """
    modules = comparison.matching.modules
    back: dict[str, str] = {wanted: name for name, wanted in reversed(modules.items())}
    lent = [{(each.module, each.call): each.maker for each in some if each.kind == "lent"} for some in (ours, theirs)]
    named = {(back[module], call): back.get(maker, "") for (module, call), maker in lent[0].items() if module in back}
    wanted = {(modules[module], call): modules.get(maker, "") for (module, call), maker in lent[1].items() if module in modules}
    sides = comparison.model.job.model, comparison.other.job.model
    return _completed(ours, wanted, sides[0], lent[0]), _completed(theirs, named, sides[1], lent[1])


def _completed(
    passages: Sequence[Passage], lenders: Mapping[Call, str], model: torch.nn.Module, known: Mapping[Call, str]
) -> list[Passage]:  # fmt: skip
    found: list[Passage] = []
    done = set(known)
    for each in passages:
        call = each.module, each.call
        if each.kind == "in" and call in lenders and call not in done:
            done.add(call)
            for place, weight in enumerate(floats(list(model.get_submodule(each.module).parameters(recurse=False)))):
                value = real_copy(weight.to(each.tensor.dtype) if weight.is_floating_point() else weight)
                found.append(Passage("lent", *call, place, value, lenders[call], False, each.caller, shape=tuple(weight.shape)))
        found.append(each)
    return found
