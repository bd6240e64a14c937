"""Finds which differences between two models are no fault, since the code around them makes up for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from precheck.pairs.comparison import Comparison
from precheck.pairs.contents import Contents
from precheck.pairs.couples import Couples
from precheck.pairs.floors import PARTED
from precheck.pairs.module_dataflow import Passage, depends
from precheck.pairs.same_code import twins
from precheck.pairs.transplants import with_other_numbers

Differs = Callable[[Passage], bool]
Off = tuple[int, Passage]
"""A tensor that differs, and its place among those of the run."""


class Excuses:
    """`forward`: all tensors that pass between the modules of `other`, in the order of its run."""

    def __init__(self, comparison: Comparison, forward: Sequence[Passage], coupled: Couples, differs: Differs, contents: Contents) -> None:
        self.comparison, self.model, self.matching = comparison, comparison.other.job.model, comparison.matching
        self.forward, self.coupled, self.differs, self.contents = forward, coupled, differs, contents
        self.read: dict[tuple[str, str, int, int], bool] = {}  # whether a call reads an input
        self.terms: set[tuple[type, int]] = set()  # results that callers complete, by class and place
        self.results: dict[str, list[Off]] = {}  # of each module
        for place, each in enumerate(forward):
            if each.kind == "out":
                self.results.setdefault(each.module, []).append((place, each))

    def hold(self, place: int, passage: Passage) -> bool:
        """Whether the difference of the tensor at that place is no fault."""
        before, after = self.forward[:place], self.forward[place + 1 :]
        if self._around(place, passage) or self._returned_apart(passage, before) or self._in_right_module(passage, before):
            return True
        if passage.kind != "out":
            return self._before(passage, before) or self._in_another_role(passage)
        completed = self._of_other_form(passage) or self._completed(passage, after)
        return completed or self._read_rightly(passage, after) or self._completes(passage)

    def _around(self, place: int, passage: Passage) -> bool:
        """Whether a module around this tensor, or the one that reads it, returns the same as model's.

        An expert, say, is given all rows in one model, and its own in the other. A norm may lie in the weights before it.
        """
        names = passage.module.split(".") if passage.module else []
        holders = [".".join(names[:depth]) for depth in range(len(names) - (passage.kind == "out"), -1, -1)]
        return any(self._right(holder, place) for holder in holders)

    def _right(self, module: str, place: int) -> bool:
        """Whether the next call of the module that ends returns the same as model's."""
        later = [each for at, each in self.results.get(module, ()) if at > place]
        results = [each for each in later if each.call == later[0].call]
        pairs = [self.coupled(each) for each in results]
        return all(pair is not None and pair[0].shape == pair[1].shape for pair in pairs) and bool(results) and not any(map(self.differs, results))

    def _returned_apart(self, passage: Passage, before: Sequence[Passage]) -> bool:
        """Whether a call of a module returns another number of tensors, and this one is right in itself: a sum, say, whose terms go on apart. If the
        same part of another block, with as many inputs, is given what model's is, its role is no other here."""
        makers = [passage] if passage.kind == "out" else [each for each in before if each.kind == "out" and torch.equal(each.tensor, passage.tensor)]
        results, modules = self.coupled.results, self.matching.modules
        apart = any(results[0].get(modules[each.module]) != results[1].get(each.module) for each in makers if each.module in modules)
        return apart and not self._given_rightly_elsewhere(passage, before) and self.contents.hold(passage.tensor)

    def _given_rightly_elsewhere(self, passage: Passage, before: Sequence[Passage]) -> bool:
        """Whether the same part of a module of the same class was given what model's part is given at this place, and as many tensors."""
        known, counts = twins(self.comparison, passage.module), self.coupled.taken
        same = [each for each in before if each.module in known and passage.kind == each.kind == "in" and each.place == passage.place]
        many = (each for each in same if len(counts[each.module, each.call]) == len(counts[passage.module, passage.call]))
        return any(self.coupled.placed(each) and not self.differs(each) for each in many)

    def _of_other_form(self, passage: Passage) -> bool:
        """Whether one of another number of calls returns rows of another length than model's calls do, as where one decoder goes on to logits, and
        its numbers occur in `model`. Such rows have no place there."""
        names = self.matching.modules.get(passage.module, ""), passage.module
        ours, theirs = (calls.get(("out", name, passage.place), []) for calls, name in zip(self.coupled.calls, names, strict=True))
        if not ours or len(ours) == len(theirs) or not passage.tensor.dim():
            return False
        return all(each.tensor.shape[-1:] != passage.tensor.shape[-1:] for each in ours) and self.contents.hold(passage.tensor)

    def _in_another_role(self, passage: Passage) -> bool:
        """Whether an input stands for something else than that of model's call: for words, say, which model's decoder looks up itself, so that its
        first input is what was read. It has other sizes than model's, none of its rows is there, and its numbers occur elsewhere in `model`. A module
        of the class that is given a tensor of model's size at this place shows that it has the same role."""
        couple = self.coupled(passage) if passage.kind == "in" and not self.coupled.placed(passage) else None
        if couple is None or couple[0].shape != couple[1].shape or not couple[0].dim():
            return False
        if any(self.coupled.placed(each) for _, each in self._alike(passage, self.forward)):
            return False
        rows, known = (each.reshape(len(each), -1) for each in couple)
        none = bool(((rows - known).norm(dim=1) > PARTED * known.norm(dim=1)).all())
        return none and self.contents.hold(passage.tensor)

    def _alike(self, passage: Passage, among: Sequence[Passage]) -> Iterator[Off]:
        """Those at the same place of other modules of the class."""
        kind = type(self.model.get_submodule(passage.module))
        for place, each in enumerate(among):
            if (each.kind, each.place) == (passage.kind, passage.place) and each.module != passage.module:
                if type(self.model.get_submodule(each.module)) is kind:
                    yield place, each

    def _in_right_module(self, passage: Passage, before: Sequence[Passage]) -> bool:
        """Whether the same tensor of a module of the same class differs too, which returned the same as model's: a filter's result, say, where a norm
        was folded into the filter. Both differ in their sizes, as where only one model pads before the filter, or in their numbers. If this module
        has another fault, a later tensor shows it, which differs in this one alone."""
        known, placed = twins(self.comparison, passage.module), self.coupled.placed(passage)
        same = [off for off in enumerate(before) if off[1].module in known and (off[1].kind, off[1].place) == (passage.kind, passage.place)]
        alike = (off for off in same if self.coupled.placed(off[1]) == placed and self.differs(off[1]))
        return any(self._right(holder, place) for place, each in alike for holder in known[each.module])

    def _completed(self, passage: Passage, after: Sequence[Passage]) -> bool:
        """Whether the caller's own code makes a right tensor of this result: a branch, say, to which it adds the residual that model's module adds
        itself. Or whether it did so for another module of the class, and the result occurs in `model`."""
        kind = type(self.model.get_submodule(passage.module)), passage.place
        made = (each for each in after if each.kind == "in" and not each.given and each.caller == passage.caller)
        alike = (each for each in made if each.tensor.numel() >= passage.tensor.numel() and self.coupled.placed(each) and not self.differs(each))
        if any(depends(each, passage) for each in alike):
            self.terms.add(kind)
            return True
        return kind in self.terms and self.contents.hold(passage.tensor)

    def _read_rightly(self, passage: Passage, after: Sequence[Passage]) -> bool:
        """Whether the modules that are given the numbers of this result are given what model's are: words that hold a scale, say, by which `model`
        multiplies them. The code between makes it right there, so that the result is no fault here."""
        readers = [each for each in after if each.kind == "in" and each.caller == passage.caller and torch.equal(each.tensor, passage.tensor)]
        return bool(readers) and all(self.coupled.placed(each) and not self.differs(each) for each in readers)

    def _completes(self, passage: Passage) -> bool:
        """Whether a module does itself what the code that calls model's does with its result: a product with a scale, say, that lies in a weight."""
        there = self.coupled(passage) if self.coupled.placed(passage) else None
        around = self.matching.modules.get(passage.caller) if passage.caller else ""
        return there is not None and around is not None and self.contents.made_of(there[1], passage.tensor, around)

    def _before(self, passage: Passage, before: Sequence[Passage]) -> bool:
        """Whether a module of the same class was given the same tensor before, and returned the same as model's: positions, say, that go on from one
        document to the next, where only distances count. Or whether it was given another tensor there, of other sizes than model's: keys, say,
        where model gives what they are made of."""
        for place, each in self._alike(passage, before):
            other_role = not self.coupled.placed(passage) and not self.coupled.placed(each)
            alike = other_role or (each.maker == passage.maker and torch.equal(each.tensor, passage.tensor))
            if alike and self.differs(each):  # there too, so that it was made up for, unless it was not read
                return self._right(each.module, place) and (other_role or self._read(each))
        return False

    def _read(self, passage: Passage) -> bool:
        """Whether a call reads an input: with other numbers in its place it returns something else."""
        if passage.key not in self.read:
            results = [each.tensor for _, each in self.results.get(passage.module, ()) if each.call == passage.call]
            made = with_other_numbers(self.comparison.other, passage, self.contents.dtype)
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
