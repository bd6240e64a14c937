"""Raises Python's recursion limit for the frames that hooks add, so that a deeply nested model that runs alone can be watched too.

A module call takes two frames of torch beside the module's own forward, and a third if the module has hooks. So a model that runs within the
recursion limit runs within four thirds of it under hooks. Observing the innermost op takes some frames more.
"""

from __future__ import annotations

import sys

from precheck.torch_support.shared_changes import Shared

OBSERVING = 200
"""Frames between a verb and the model, and between an op and the innermost function that observes it. At most 60 were counted."""


def _raise() -> tuple[int, int]:
    """Raises the limit. Returns it before and after."""
    before = sys.getrecursionlimit()
    raised = before + before // 3 + OBSERVING
    sys.setrecursionlimit(raised)
    return before, raised


def _lower(limits: tuple[int, int]) -> None:
    """Undoes `_raise`, unless the block has set a limit itself."""
    if sys.getrecursionlimit() == limits[1]:
        sys.setrecursionlimit(limits[0])


room = Shared(_raise, _lower).held
"""A block in which the recursion limit is raised."""
