"""Kernels put where torch keeps its own, for as long as somebody needs them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Overrides:
    """What `install` puts into a torch.library.Library, which it returns: there once, however many blocks hold it, and gone with the last."""

    def __init__(self, install: Callable[[], Any]) -> None:
        self._install = install
        self._lock, self._users = threading.RLock(), 0
        self._library: Any = None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nests, in any thread."""
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
