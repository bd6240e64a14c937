"""Measures the parts that autograd adds up to an input's gradient, in the input's format. Each use of the input contributes one part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

MOST = 4
"""At most so many parts are allowed. Their sum has a rounding error for each part and each addition. A longer chain is an accumulator in a low
format."""


DEEP = 2**12
"""The most nodes of a graph that are looked at. Torch frees a long chain of nodes one by one, but those that Python has seen it frees one inside the
other: with 65 536 of them the stack of the process overflows. So parts are not looked for in longer graphs, as of a loop over a row's columns."""


class Parts:
    """Records the parts of each leaf's gradient while in the block. `sizes` holds the sum of their absolute values, for leaves with several parts.

    A leaf may be an expanded row. Then the expanded tensor is passed, and the sizes are those of the row.
    """

    def __init__(self, outputs: Sequence[torch.Tensor], leaves: Mapping[str, torch.Tensor]) -> None:
        self.sizes: dict[str, torch.Tensor] = {}
        self.handles: list[Any] = []
        self.rows = {name for name, leaf in leaves.items() if leaf.grad_fn is not None}
        self.ways = {name: ways for name, ways in _ways(outputs, leaves).items() if 1 < len(ways) <= MOST}

    def __enter__(self) -> Parts:
        for name, ways in self.ways.items():
            self.handles += [node.register_hook(self._noting(name, place)) for node, place in ways]
        return self

    def __exit__(self, *raised: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _noting(self, name: str, place: int) -> Callable[[Sequence[torch.Tensor | None], Any], None]:
        def note(gradients: Sequence[torch.Tensor | None], given: Any) -> None:
            part = gradients[place]
            if part is not None and not part.is_complex():
                size = part.detach().double().abs().nan_to_num(posinf=0.0)
                size = size.sum(0, keepdim=True) if name in self.rows else size
                self.sizes[name] = self.sizes[name] + size if name in self.sizes else size

        return note


def _ways(outputs: Sequence[torch.Tensor], leaves: Mapping[str, torch.Tensor]) -> dict[str, list[tuple[Any, int]]]:
    """For each leaf, the nodes of the graph that give it a gradient, and at which position."""
    entries = {name: _entry(leaf) for name, leaf in leaves.items()}  # kept alive, since torch makes a new object for a node that was freed
    names = {id(entry): name for name, entry in entries.items()}
    found: dict[str, list[tuple[Any, int]]] = {}
    for count, node in enumerate(nodes([each.grad_fn for each in outputs])):
        if count >= DEEP:
            return {}
        for place, (following, _) in enumerate(node.next_functions):
            name = names.get(id(getattr(following, "variable", following)))
            if name is not None:
                found.setdefault(name, []).append((node, place))
    return found


def _entry(leaf: torch.Tensor) -> Any:
    """The object that the graph has for a leaf: the leaf, or the node that expands a row, before which the parts are added up."""
    return leaf if leaf.grad_fn is None else leaf.grad_fn


def nodes(first: Sequence[Any]) -> Iterator[Any]:
    """The nodes of a graph, from these on."""
    seen, left = set(), [each for each in first if each is not None]
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        left += [following for following, _ in node.next_functions if following is not None]
