"""Code that a hasty tool accuses and that is right: each function's docstring says what looks like a fault. `IDIOMS` are all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from healthy import attention, losses, memory, numbers

IDIOMS: tuple[Callable[[], Any], ...] = (*attention.IDIOMS, *losses.IDIOMS, *numbers.IDIOMS, *memory.IDIOMS)
