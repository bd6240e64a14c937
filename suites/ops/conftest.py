"""Calls of the registry's ops, once for all tests of it."""

from __future__ import annotations

import pytest
import torch_calls


@pytest.fixture(scope="session")
def calls() -> torch_calls.Calls:
    """Calls of each op that the registry has a row of, by its name."""
    return torch_calls.known()
