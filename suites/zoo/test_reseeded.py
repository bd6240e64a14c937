"""The script that gives the zoo other random numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("reseeded.py")


def printed(*arguments: str) -> str:
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("way", [(), ("--fetched",)], ids=["here", "fetched"])
@pytest.mark.usefixtures("forked_python")
def test_a_bug_and_controls_with_other_numbers(way: tuple[str, ...], tmp_path: Path) -> None:
    """These controls were accused with other numbers, or on an accelerator."""
    names = ("int8-scale", "divergence_beside_a_likelihood", "carrier_of_a_short_message", "idle_expert", "textbook_compensation")
    said = printed(*names, "--seed", "4", *way, "--lines", str(tmp_path / "lines"))
    assert re.search(r"^bugs 1: found \d, on the line \d, twins accused \d; controls accused 0 of 4$", said, re.MULTILINE), said
    assert len((tmp_path / "lines").read_text().splitlines()) == 5


@pytest.mark.usefixtures("forked_python")
def test_only_programs_of_the_zoo_get_other_numbers() -> None:
    code = """
import torch, reseeded
from bugs.bug import normal
from healthy.trainings import seeded
def drawn():
    own = torch.randn(3, generator=torch.Generator().manual_seed(0)).tolist()
    return normal(3).tolist(), seeded(lambda: torch.nn.Linear(2, 2)).weight.tolist(), own
first = drawn()
reseeded.reseed(5)
second = drawn()
print([a == b for a, b in zip(first, second)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True, cwd=SCRIPT.parent)
    assert done.stdout.strip() == "[False, False, True]"
