"""Finds out whether a module that returns something wrong was given the wrong ones of the tensors that model's call is given.

Where `model` gives a call all keys, say, and the call chooses, a port may choose before the call. No place says then which tensor should be which.
But there are few choices, and with the right one the module returns what model's does, if its code is right.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Iterator, Sequence

import torch

from precheck.observe.containers import mapped
from precheck.pairs.backward_difference import PARTED
from precheck.pairs.comparison import REFUSALS, Comparison
from precheck.pairs.couples import Couples
from precheck.pairs.floors import relative
from precheck.pairs.module_dataflow import Passage
from precheck.pairs.transplants import Call, run_with
from precheck.torch_support.dense_parts import continuous

MOST = 16
"""Choices that are tried. Each takes a run of `other`."""


def wrongly_chosen(comparison: Comparison, given: Sequence[Passage], coupled: Couples, dtype: torch.dtype) -> str | None:
    """Whose code gives a call the wrong tensors: the caller's, if model's call is given these too, or else the code that made the first of them. None
    if no choice makes the call return what model's does."""
    call = Call(given[-1].module, given[-1].call)
    wanted = coupled.matching.modules.get(call.module)
    theirs = [each for each in coupled.known.values() if (each.module, each.call) == (wanted, call.number)]
    results, offered = ([each.tensor for each in theirs if each.kind == kind] for kind in ("out", "in"))
    for choice in itertools.islice(_choices(given, offered, coupled), MOST):
        made: list[torch.Tensor] = []
        with contextlib.suppress(*REFUSALS):
            made = _run(comparison, call, choice, dtype)
        if len(made) >= len(results) > 0 and all(a.shape == b.shape and relative(a, b) <= PARTED for a, b in zip(made, results, strict=False)):
            wrong = next(each for each in given if each.place in choice)
            own = any(each.shape == wrong.tensor.shape and relative(wrong.tensor, each) <= PARTED for each in offered)
            return wrong.caller if own or not wrong.given else wrong.maker
    return None


def _choices(given: Sequence[Passage], offered: Sequence[torch.Tensor], coupled: Couples) -> Iterator[dict[int, torch.Tensor]]:
    """Tensors of model's call, in their order, for those of the call that are at no place of it, without those that it has already."""
    fixed = [each for each in given if _agrees(each, coupled)]
    free = [each for each in given if each not in fixed]
    left = [each for each in offered if not any(each.shape == one.tensor.shape and torch.equal(each, one.tensor) for one in fixed)]
    if not fixed or not free or len(offered) == len(given):
        return
    for some in itertools.combinations(left, len(free)):
        if all(one.shape == each.tensor.shape for one, each in zip(some, free, strict=True)):
            pairs = zip(free, some, strict=True)
            choice = {each.place: one for each, one in pairs if relative(each.tensor, one) > PARTED}
            if choice:
                yield choice


def _agrees(passage: Passage, coupled: Couples) -> bool:
    couple = coupled(passage) if coupled.placed(passage) else None
    return couple is not None and couple[0].shape == couple[1].shape and relative(*couple) <= PARTED


def _run(comparison: Comparison, call: Call, choice: dict[int, torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    def enter(module: torch.nn.Module, arguments: inspect.BoundArguments) -> bool:
        place = -1

        def chosen(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal place
            place += continuous(tensor)
            return choice[place].to(tensor.dtype) if continuous(tensor) and place in choice else tensor

        arguments.arguments.update({name: mapped(value, chosen) for name, value in arguments.arguments.items()})
        return True

    return run_with(comparison.other, call, dtype, enter)
