"""Walks over the graph of a run: from a value to what is made from it, or back to what it was made from."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

Node = TypeVar("Node")
Reader = TypeVar("Reader")

NEARBY = 64
"""The most values, or ops, that a search in the neighbourhood of one visits."""
FAR = 4096
"""The most that a search visits which is made once for a line. A loop may have some hundred turns of ten ops."""


class Walk(Generic[Node]):
    """Visits values, or ops, each once and the nearest first. The loop over it says with `follow` where the walk goes on.

        for value, reader in walk.with_readers(readers):
            walk.follow(reader.outputs)

    It ends when nothing is left, or when `most` nodes have been met, so that no walk costs more than that.
    """

    def __init__(self, start: Iterable[Node], most: float = math.inf) -> None:
        self.waiting = deque(start)
        self.reached = set(self.waiting)
        self.most = most

    def __iter__(self) -> Iterator[Node]:
        while self.waiting and len(self.reached) < self.most:
            yield self.waiting.popleft()

    def with_readers(self, readers: Mapping[Node, Iterable[Reader]]) -> Iterator[tuple[Node, Reader]]:
        """Visits each value once for each op that reads it, together with that op."""
        return ((value, reader) for value in self for reader in readers.get(value, ()))

    def follow(self, found: Iterable[Node]) -> None:
        """Adds what has not been met yet."""
        for node in found:
            if node not in self.reached:
                self.reached.add(node)
                self.waiting.append(node)

    @property
    def whole(self) -> bool:
        """Whether nothing was left out, after the loop."""
        return not self.waiting
