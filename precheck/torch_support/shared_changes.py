"""Changes a setting of the process for the time of a block. Blocks may be nested and run in several threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

Before = TypeVar("Before")


class Shared(Generic[Before]):
    """A change that `begin` makes and `end` undoes. The first open block makes it, the last one undoes it. `end` gets what `begin` returns."""

    def __init__(self, begin: Callable[[], Before], end: Callable[[Before], None]) -> None:
        self.begin, self.end = begin, end
        self.lock, self.open = threading.RLock(), 0
        self.before: list[Before] = []

    def begun(self) -> None:
        """A block begins."""
        with self.lock:
            if self.open == 0:
                self.before = [self.begin()]
            self.open += 1

    def ended(self) -> None:
        """A block ends."""
        with self.lock:
            self.open -= 1
            if self.open == 0:
                self.end(self.before.pop())

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside the block the change is in force, in all threads."""
        self.begun()
        try:
            yield
        finally:
            self.ended()


def overrides(install: Callable[[], Any]) -> Shared[Any]:
    """Kernels of torch that `install` registers in a torch.library.Library, which it returns."""

    def remove(library: Any) -> None:
        from precheck.torch_internals import destroy

        destroy(library)

    return Shared(install, remove)
