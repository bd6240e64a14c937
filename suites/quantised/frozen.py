"""What the frozen batches share: recipes whose fault is switched on by an argument, and the lines at fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest
import torch

import precheck
from precheck.observe.shadow.quantisers.codes import Codes

Program = Callable[[bool], torch.Tensor]
"""Called with whether it is to be wrong."""


def culprits(module: ModuleType) -> set[int]:
    """The lines of a batch that are marked as at fault."""
    lines = Path(str(module.__file__)).read_text(encoding="utf8").splitlines()
    return {number for number, line in enumerate(lines, 1) if re.search(r"# culprit: [\w-]+$", line)}


def watched(program: Program, bug: bool, results: list[torch.Tensor] | None = None) -> precheck.Report:
    """What is found. No op of the program may end the search: after an exception codes are followed no longer. `results` gets the result."""
    ended: list[bool] = []

    def finish(codes: Codes, given: Callable[[Codes], None] = Codes.finish) -> None:
        ended.append(codes.off)
        given(codes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Codes, "finish", finish)
        with precheck.watch() as report:
            result = program(bug)
    if results is not None:
        results.append(result)
    assert ended
    assert not any(ended)
    return report


def assert_found(program: Program, batch: ModuleType, rules: Mapping[str, str], missed: Mapping[str, str]) -> None:
    """The fault is found on a marked line of `batch`, under the rule `wrong-scale` or the one in `rules`. Or it is one of those that are `missed`. It
    changes the result by 5 % of its norm or makes it Inf or NaN, and the watched run gives the same bits."""
    seen: list[torch.Tensor] = []
    errors = watched(program, True, seen).errors
    bug, twin, again = program(True).detach().float(), program(False).detach().float(), seen[0].detach().float()
    assert not float((bug - twin).norm() / twin.norm()) < 0.05  # a comparison with NaN is False
    assert torch.equal(bug.nan_to_num(123.0), again.nan_to_num(123.0))
    if program.__name__ in missed:
        assert not errors, f"{program.__name__} is found now: {errors[0].message}"
        return
    assert errors, f"{program.__name__}: nothing is found"
    assert errors[0].rule == rules.get(program.__name__, "wrong-scale")
    assert int(errors[0].source.rpartition(":")[2]) in culprits(batch)


def assert_far_from_float64(program: Program, exact: Callable[[], torch.Tensor]) -> None:
    """With the fault the result is at least four times as far from what float64 gives without any rounding."""
    meant = exact()
    bug, twin = (float((program(wrong).detach().double() - meant).norm()) for wrong in (True, False))
    assert not bug < 4 * twin  # a comparison with NaN is False
