"""Walks over the graph of a run: from a value to what is made from it, or back to what it was made from. And how often one is due."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

Node = TypeVar("Node")
Reader = TypeVar("Reader")

NEARBY = 64
"""The most values, or ops, that a search in the neighbourhood of one visits."""
FAR = 4096
"""The most that a search visits which is made once for a line. A loop may have some hundred turns of ten ops."""
FAILURES = 8
"""So many walks without an answer for one line, and only some of its ops are walked from."""


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


class Attempts:
    """Counts for each line the walks that found no cause. A walk goes back over a whole loop, so a walk in each of n iterations would cost n²
    steps."""

    def __init__(self) -> None:
        self.waits: dict[tuple[object, ...], int] = defaultdict(int)
        self.passed: dict[tuple[object, ...], int] = defaultdict(int)

    def due(self, line: tuple[object, ...]) -> bool:
        """Whether to walk: always at first. After eight walks without an answer, only when the number of iterations has doubled."""
        if self.waits[line] < FAILURES:
            return True
        self.passed[line] += 1
        return self.passed[line] >= self.waits[line]

    def failed(self, line: tuple[object, ...]) -> None:
        """Notes that a walk for this line found no cause."""
        self.waits[line] = 2 * self.waits[line] if self.waits[line] >= FAILURES else self.waits[line] + 1
        self.passed[line] = 0
