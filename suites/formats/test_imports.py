"""Importing the formats costs neither torch nor numpy, and the check that says so can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "numpy")
ROOT = Path(__file__).resolve().parents[2]


def loaded_by(statement: str) -> list[str]:
    """The heavy packages that a fresh interpreter has loaded once it has run the statement."""
    code = f"{statement}\nimport sys\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    return ran.stdout.split()


@pytest.mark.parametrize(
    "statement",
    [
        "import precheck.formats",
        "from precheck.formats import BF16, of_dtype; BF16.absorbs(1.23456, -1e-4); of_dtype('torch.bfloat16')",
    ],
    ids=["import", "use"],
)
def test_formats_import_is_light(statement: str) -> None:
    """Importing the module, and its arithmetic, load neither torch nor numpy."""
    assert loaded_by(statement) == []


@pytest.mark.parametrize(
    ("statement", "package"),
    [("import numpy", "numpy"), ("import precheck.formats; precheck.formats.BF16.dtype", "torch")],
    ids=["numpy", "dtype"],
)
def test_the_check_can_fail(statement: str, package: str) -> None:
    """The check names numpy when it is imported, and torch once a format is asked for its dtype."""
    assert package in loaded_by(statement)
