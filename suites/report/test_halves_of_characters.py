"""A module's name may be any string, half a surrogate pair too: nothing raises, and it is shown as Python's escape everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import precheck
from precheck.goldens import lifecycle
from precheck.goldens.file import write
from precheck.measurement import job_of
from precheck.words import printable, writable

HALF = "layer\ud800"
SHOWN = r"layer\ud800"


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.add_module(HALF, nn.Linear(4, 4))
        self.register_parameter("scale\udfff", nn.Parameter(torch.ones(4)))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = getattr(self, HALF)(values * 60000)
        return result.square() * getattr(self, "scale\udfff")


def test_words() -> None:
    assert writable(HALF) == printable(HALF) == SHOWN
    assert writable("whole \U0001f600 é") == "whole \U0001f600 é"


def test_what_is_written_of_a_measurement() -> None:
    report = precheck.measure(Odd(), torch.ones(3, 4), precision="16-true", loss=lambda out: out.sum())
    assert report.errors
    assert SHOWN.encode() in report.summary(top=50).encode()
    kept = json.loads(report.to_json().encode())
    assert any(HALF in row["tensor"] for row in kept["boundaries"])  # what programs read is the name itself
    assert all(str(finding).encode() for finding in report.findings)
    with pytest.raises(precheck.PrecisionFailure) as caught:
        report.raise_for_errors()
    assert str(caught.value).encode()


def test_a_golden_is_written_and_read(tmp_path: Path) -> None:
    model, inputs, golden = Odd(), torch.full((3, 4), 1e-3), tmp_path / "odd.safetensors"
    write(golden, lifecycle.record(job_of(model, inputs)))
    assert not precheck.check(model, inputs, golden=golden).findings
    assert precheck.check(model, inputs * 2, golden=golden).findings


FILE = '''
import torch
from torch import nn

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module("layer\\ud800", nn.Linear(4, 4))

    def forward(self, values):
        return getattr(self, "layer\\ud800")(values * 60000).square()

def test_odd(check_precision):
    torch.manual_seed(0)
    check_precision(Odd(), torch.ones(3, 4), loss=lambda out: out.sum())
'''


def test_every_report_is_written(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_odd=FILE)
    assert pytester.runpytest("--golden-refresh=missing").ret == 0
    names = {"json": "a.json", "html": "a.html", "markdown": "a.md", "sarif": "a.sarif"}
    result = pytester.runpytest("--precision=16-true", "--drift-report=term", *(f"--drift-report={kind}:{name}" for kind, name in names.items()))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([r"*layer\ud800*"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    for name in names.values():
        assert (pytester.path / name).read_bytes().decode("utf8")
