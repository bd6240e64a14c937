"""Replaces kernels of torch for the time of a block. Blocks may be nested and run in several threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Overrides:
    """Kernels that `install` registers in a torch.library.Library, which it returns. The first open block installs them, the last one removes
    them."""

    def __init__(self, install: Callable[[], Any]) -> None:
        self._install = install
        self._lock, self._users = threading.RLock(), 0
        self._library: Any = None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside the block the kernels are installed."""
        with self._lock:
            if self._users == 0:
                self._library = self._install()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    from precheck.torch_internals import destroy

                    self._library, done = None, self._library
                    destroy(done)
