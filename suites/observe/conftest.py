"""What tests of several files here stand on. Programs of several ranks are launched by suites/recipes/forked_ranks.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from precheck.observe.recording.recorder import Waiting

sys.path.append(str(Path(__file__).parents[1] / "recipes"))

ASKING = ("item", "tolist", "__float__", "__int__", "__bool__", "__index__")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What asks a tensor for a number outside the transfers: each such call would make a GPU's host wait."""
    told: list[str] = []
    fetching: list[bool] = []

    def noted(name: str, original: Any) -> Any:
        def ask(*args: Any, **kwargs: Any) -> Any:
            if not fetching:
                told.append(name)
            return original(*args, **kwargs)

        return ask

    for name in ASKING:
        monkeypatch.setattr(torch.Tensor, name, noted(name, getattr(torch.Tensor, name)))
    monkeypatch.setattr(torch, "equal", noted("equal", torch.equal))
    flush = Waiting.flush

    def fetch(self: Waiting) -> None:
        fetching.append(True)
        try:
            flush(self)
        finally:
            fetching.pop()

    monkeypatch.setattr(Waiting, "flush", fetch)
    return told
