"""Finds which differences between two models are no fault, since the code around them makes up for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from precheck.pairs.backward_difference import PARTED
from precheck.pairs.comparison import Comparison
from precheck.pairs.contents import Contents
from precheck.pairs.couples import Couples
from precheck.pairs.module_dataflow import Passage, depends
from precheck.pairs.transplants import with_other_numbers

Differs = Callable[[Passage], bool]
Off = tuple[int, Passage]
"""A tensor that differs, and its place among those of the run."""


class Excuses:
    """`forward`: all tensors that pass between the modules of `other`, in the order of its run."""

    def __init__(
        self, comparison: Comparison, forward: Sequence[Passage], coupled: Couples, differs: Callable[[Passage], bool], contents: Contents
    ) -> None:
        self.model, self.matching = comparison.other.job.model, comparison.matching
        self.forward, self.coupled, self.differs, self.contents = forward, coupled, differs, contents
        self.read: dict[tuple[str, str, int, int], bool] = {}  # whether a call reads an input
        self.terms: set[tuple[type, int]] = set()  # results that callers complete, by class and place

    def hold(self, place: int, passage: Passage) -> bool:
        """Whether the difference of the tensor at that place is no fault."""
        before = self.forward[:place]
        after = self.forward[place + 1 :]
        excused = self._around(passage, after) or self._returned_apart(passage, before) or self._before(passage, before)
        excused = excused or self._of_other_form(passage) or self._in_right_module(passage, before) or self._completed(passage, after)
        return excused or self._read_rightly(passage, after) or self._completes(passage) or self._in_another_role(passage)

    def _around(self, passage: Passage, after: Sequence[Passage]) -> bool:
        """Whether a module around this tensor, or the one that reads it, returns the same as model's.

        An expert, say, is given all rows in one model, and its own in the other. A norm may lie in the weights before it.
        """
        names = passage.module.split(".") if passage.module else []
        holders = [".".join(names[:depth]) for depth in range(len(names) - (passage.kind == "out"), -1, -1)]
        return any(self._right(holder, after) for holder in holders)

    def _right(self, module: str, after: Sequence[Passage]) -> bool:
        """Whether the next call of the module that ends returns the same as model's."""
        last = next((each for each in after if each.kind == "out" and each.module == module), None)
        if last is None:
            return False
        results = [each for each in after if each.kind == "out" and each.module == module and each.call == last.call]
        pairs = [self.coupled(each) for each in results]
        return all(pair is not None and pair[0].shape == pair[1].shape for pair in pairs) and not any(self.differs(each) for each in results)

    def _returned_apart(self, passage: Passage, before: Sequence[Passage]) -> bool:
        """Whether a call of a module returns another number of tensors, and this one is right in itself: a sum, say, whose terms go on apart. If the
        same part of another block, with as many inputs, is given what model's is, its role is no other here."""
        makers = [passage] if passage.kind == "out" else [each for each in before if each.kind == "out" and torch.equal(each.tensor, passage.tensor)]
        results, modules = self.coupled.results, self.matching.modules
        apart = any(results[0].get(modules[each.module]) != results[1].get(each.module) for each in makers if each.module in modules)
        return apart and not self._given_rightly_elsewhere(passage, before) and self.contents.hold(passage.tensor)

    def _given_rightly_elsewhere(self, passage: Passage, before: Sequence[Passage]) -> bool:
        """Whether the same part of a module of the same class was given what model's part is given at this place, and as many tensors."""
        if passage.kind != "in":
            return False
        names, counts = passage.module.split("."), self.coupled.taken
        parts = [(".".join(names[:depth]), ".".join(names[depth:])) for depth in range(1, len(names))]
        classes = {part: type(self.model.get_submodule(holder)) for holder, part in parts}
        for each in before:
            if (each.kind, each.place) != (passage.kind, passage.place) or each.module == passage.module:
                continue
            many = len(counts[each.module, each.call]) == len(counts[passage.module, passage.call])
            ends = [part for part in classes if each.module.endswith(f".{part}")]
            alike = any(type(self.model.get_submodule(each.module.removesuffix(f".{part}"))) is classes[part] for part in ends)
            if many and alike and self.coupled.placed(each) and not self.differs(each):
                return True
        return False

    def _of_other_form(self, passage: Passage) -> bool:
        """Whether one of another number of calls returns rows of another length than model's calls do, as where one decoder goes on to logits, and
        its numbers occur in `model`. Such rows have no place there."""
        names = self.matching.modules.get(passage.module, ""), passage.module
        ours, theirs = (calls.get(("out", name, passage.place), []) for calls, name in zip(self.coupled.calls, names, strict=True))
        if passage.kind != "out" or not ours or len(ours) == len(theirs) or not passage.tensor.dim():
            return False
        return all(each.tensor.shape[-1:] != passage.tensor.shape[-1:] for each in ours) and self.contents.hold(passage.tensor)

    def _in_another_role(self, passage: Passage) -> bool:
        """Whether an input stands for something else than that of model's call: for words, say, which model's decoder looks up itself, so that its
        first input is what was read. It has other sizes than model's, none of its rows is there, and its numbers occur elsewhere in `model`. A module
        of the class that is given a tensor of model's size at this place shows that it has the same role."""
        couple = self.coupled(passage) if passage.kind == "in" and not self.coupled.placed(passage) else None
        if couple is None or couple[0].shape != couple[1].shape or not couple[0].dim():
            return False
        kind, here = type(self.model.get_submodule(passage.module)), (passage.kind, passage.place)
        peers = (each for each in self.forward if (each.kind, each.place) == here and each.module != passage.module)
        if any(type(self.model.get_submodule(each.module)) is kind and self.coupled.placed(each) for each in peers):
            return False
        rows, known = (each.reshape(len(each), -1) for each in couple)
        none = bool(((rows - known).norm(dim=1) > PARTED * known.norm(dim=1)).all())
        return none and self.contents.hold(passage.tensor)

    def _in_right_module(self, passage: Passage, before: Sequence[Passage]) -> bool:
        """Whether the same tensor of a module of the same class differs too, which returned the same as model's: a filter's result, say, where a norm
        was folded into the filter. Both differ in their sizes, as where only one model pads before the filter, or in their numbers. If this module
        has another fault, a later tensor shows it, which differs in this one alone."""
        modules, names = dict(self.model.named_modules()), passage.module.split(".") if passage.module else []
        placed = self.coupled.placed(passage)
        for depth in range(len(names) - 1, 0, -1):
            holder, part = ".".join(names[:depth]), ".".join(names[depth:])
            for number, each in enumerate(before):
                peer = each.module.removesuffix(f".{part}")
                there = (each.kind, each.place) == (passage.kind, passage.place) and peer not in (each.module, holder)
                if not there or type(modules.get(peer)) is not type(modules[holder]) or self.coupled.placed(each) != placed:
                    continue
                if self.differs(each) and self._right(peer, before[number:]):
                    return True
        return False

    def _completed(self, passage: Passage, after: Sequence[Passage]) -> bool:
        """Whether the caller's own code makes a right tensor of this result: a branch, say, to which it adds the residual that model's module adds
        itself. Or whether it did so for another module of the class, and the result occurs in `model`."""
        kind = type(self.model.get_submodule(passage.module)), passage.place
        made = (each for each in after if passage.kind == "out" and each.kind == "in" and not each.given and each.caller == passage.caller)
        alike = (each for each in made if each.tensor.numel() >= passage.tensor.numel() and self.coupled.placed(each) and not self.differs(each))
        if any(depends(each, passage) for each in alike):
            self.terms.add(kind)
            return True
        return passage.kind == "out" and kind in self.terms and self.contents.hold(passage.tensor)

    def _read_rightly(self, passage: Passage, after: Sequence[Passage]) -> bool:
        """Whether the modules that are given the numbers of this result are given what model's are: words that hold a scale, say, by which `model`
        multiplies them. The code between makes it right there, so that the result is no fault here."""
        readers = [each for each in after if each.kind == "in" and passage.kind == "out" and each.caller == passage.caller]
        readers = [each for each in readers if torch.equal(each.tensor, passage.tensor)]
        return bool(readers) and all(self.coupled.placed(each) and not self.differs(each) for each in readers)

    def _completes(self, passage: Passage) -> bool:
        """Whether a module does itself what the code that calls model's does with its result: a product with a scale, say, that lies in a weight."""
        there = self.coupled(passage) if passage.kind == "out" and self.coupled.placed(passage) else None
        around = self.matching.modules.get(passage.caller) if passage.caller else ""
        return there is not None and around is not None and self.contents.made_of(there[1], passage.tensor, around)

    def _before(self, passage: Passage, before: Sequence[Passage]) -> bool:
        """Whether a module of the same class was given the same tensor before, and returned the same as model's: positions, say, that go on from one
        document to the next, where only distances count. Or whether it was given another tensor there, of other sizes than model's: keys, say,
        where model gives what they are made of."""
        if passage.kind == "out":
            return False
        kind = type(self.model.get_submodule(passage.module))
        for number, each in enumerate(before):
            same = (each.kind, each.place) == (passage.kind, passage.place) and each.module != passage.module
            if not same or type(self.model.get_submodule(each.module)) is not kind:
                continue
            other_role = not self.coupled.placed(passage) and not self.coupled.placed(each)
            alike = other_role or (each.maker == passage.maker and torch.equal(each.tensor, passage.tensor))
            if alike and self.differs(each):  # there too, so that it was made up for, unless it was not read
                return self._right(each.module, before[number:]) and (other_role or self._read(each, before[number:]))
        return False

    def _read(self, passage: Passage, after: Sequence[Passage]) -> bool:
        """Whether a call reads an input: with other numbers in its place it returns something else."""
        if passage.key not in self.read:
            results = [each.tensor for each in after if each.kind == "out" and (each.module, each.call) == (passage.module, passage.call)]
            made = with_other_numbers(self.contents.comparison.other, passage, self.contents.dtype)
            self.read[passage.key] = len(made) != len(results) or not all(map(torch.equal, made, results))
        return self.read[passage.key]


def order_is_known(comparison: Comparison, forward: Sequence[Passage], found: Off, differs: Differs, loosely: Differs) -> bool:
    """Whether another order of rows, as where padding is on the other side, is no fault: a module of the class of a holder of what was `found` was
    given rows in another order before, and those that it returned were right."""
    modules = dict(comparison.other.job.model.named_modules())
    names, (place, passage) = found[1].module.split("."), found
    holders = {type(modules[".".join(names[:depth])]) for depth in range(1, len(names) + 1)}
    before = [each for each in forward[:place] if type(modules[each.module]) in holders and any(True for _ in modules[each.module].children())]
    turned = {each.module for each in before if each.kind == "in" and differs(each) and not loosely(each)}
    made = {each.module: not loosely(each) for each in before if each.kind == "out" and each.module in turned}
    return any(right for module, right in made.items() if module != passage.module)
