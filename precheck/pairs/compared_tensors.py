"""Pairs the tensors of two runs that are compared: results by position or name, the loss, gradients and updates by how their parameters are
matched."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

import torch

from precheck.pairs.capture import Captured
from precheck.pairs.matching import Matching

Of = Callable[[Captured], torch.Tensor | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """A tensor of `other`, under its name there, and the tensor of `model` that it should equal. Each function takes the tensor from a run of its
    side."""

    kind: str  # as in pairs.capture.Key
    name: str
    step: int
    of_model: Of
    of_other: Of
    ours: tuple[str, ...] = ()  # the names of model's parameters, if it is about parameters

    @property
    def title(self) -> str:
        """The tensor in words: "the output[logits]", "gradient of head.weight"."""
        later = f", step {self.step}" if self.step > 1 else ""
        if self.kind == "loss":
            return f"loss{later}"
        if self.kind == "result":
            return f"output{self.name}{later}"
        if self.kind == "input-gradient":
            return f"gradient of inputs{self.name}{later}"
        if self.kind == "buffer":
            return f"buffer {self.name}{later}"
        return f"{'gradient' if self.kind == 'parameter-gradient' else 'update'} of {self.name}{later}"

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0] if self.kind in ("parameter-gradient", "update", "buffer") else ""


def subjects(model: Captured, other: Captured, matching: Matching, frozen: Collection[str] = ()) -> tuple[list[Subject], list[str]]:
    """All tensors that both runs have, and descriptions of those that only one has. `frozen`: parameters of either side that require no gradient."""
    frozen = set(frozen)
    found, left = _results(model, other)
    for kind in ("loss", "input-gradient"):
        ours, theirs = model.of(kind), other.of(kind)
        found += [_plain(kind, name, step) for name, step in theirs if (name, step) in ours]
    left += [f"gradient of inputs{name}, which only {side} has" for side, name in _unshared(model, other)]
    if other.of("parameter-gradient"):
        left += [f"gradient of {'+'.join(link.others)}, which holds other numbers than model's" for link in matching.links if not link.same]
    found += _buffers(model, other, matching)
    for kind in ("parameter-gradient", "update"):
        ours, theirs = model.of(kind), other.of(kind)
        for step in sorted({step for _, step in (*ours, *theirs)}):
            found += _weights(kind, step, matching, {n for n, s in ours if s == step}, {n for n, s in theirs if s == step}, frozen)
    return found, left


def _buffers(model: Captured, other: Captured, matching: Matching) -> list[Subject]:
    """Buffers of the same name that both runs changed, in modules that match. A port may omit statistics that it does not read."""
    found, ours = [], model.of("buffer")
    for name, step in other.of("buffer"):
        owner, _, last = name.rpartition(".")
        wanted = ".".join(filter(None, (matching.modules.get(owner, owner), last)))
        if (wanted, step) in ours:
            found.append(_plain("buffer", name, step, wanted))
    return found


def _unshared(model: Captured, other: Captured) -> list[tuple[str, str]]:
    ours, theirs = ({name for name, _ in each.of("input-gradient")} for each in (model, other))
    return [("model", name) for name in sorted(ours - theirs)] + [("other", name) for name in sorted(theirs - ours)]


def _results(model: Captured, other: Captured) -> tuple[list[Subject], list[str]]:
    """Results by name if all names of one side exist on the other, else by position. So a ModelOutput matches a tuple."""
    found, left = [], []
    for step in sorted({step for _, step in other.of("result")}):  # there are no results if the model returns only its loss
        ours, theirs = ([name for name, each in side.of("result") if each == step] for side in (model, other))
        named = set(theirs) <= set(ours) or set(ours) <= set(theirs)
        couples = [(name, name) for name in theirs if name in ours] if named else list(zip(ours, theirs, strict=False))
        found += [_plain("result", theirs_, step, ours_) for ours_, theirs_ in couples]
        for side, names, taken in (("model", ours, {a for a, _ in couples}), ("other", theirs, {b for _, b in couples})):
            left += [f"output{name}, which only {side} returns" for name in names if name not in taken]
    return found, list(dict.fromkeys(left))


def _plain(kind: str, name: str, step: int, ours: str | None = None) -> Subject:
    wanted = name if ours is None else ours
    return Subject(kind, name, step, lambda seen: seen.tensors.get((kind, wanted, step)), lambda seen: seen.tensors.get((kind, name, step)))


def _weights(kind: str, step: int, matching: Matching, ours: set[str], theirs: set[str], frozen: set[str]) -> list[Subject]:
    """Gradients or updates. A parameter with a gradient on one side only is compared too: the other's gradient is zero.

    Of weights with other numbers than model's none is compared: if the models compute the same, these are another way to write the function, such as
    a filter with a norm in it, and have gradients of their own. If they do not, the outputs show it.
    """
    found = []
    for link in matching.links:
        if not link.same or not (ours >= set(link.models) or theirs >= set(link.others)) or frozen & {*link.models, *link.others}:
            continue
        name = link.others[0] if len(link.others) == 1 else "+".join(link.others)

        def of_model(seen: Captured, link=link) -> torch.Tensor | None:  # type: ignore[no-untyped-def]
            return link.of_model({each: value for (each, at), value in seen.of(kind).items() if at == step})  # type: ignore[no-any-return]

        def of_other(seen: Captured, link=link) -> torch.Tensor | None:  # type: ignore[no-untyped-def]
            return link.of_other({each: value for (each, at), value in seen.of(kind).items() if at == step})  # type: ignore[no-any-return]

        found.append(Subject(kind, name, step, of_model, of_other, link.models))
    return found
