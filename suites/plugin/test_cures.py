"""A cure is printed only for a failure that it cures."""

from __future__ import annotations

import pytest
from projects import Project

TRAINED = '''
RATE = 1e-2

def test_trained(check_precision):
    check_precision(make(), data(), loss=loss, optimizer=lambda ps: torch.optim.AdamW(ps, lr=RATE), steps=3)
'''


def test_no_module_is_said_to_cure_a_stale_golden(pytester: pytest.Pytester, project: Project) -> None:
    project(TRAINED)
    test = pytester.path / "test_it.py"
    test.write_text(test.read_text().replace("RATE = 1e-2", "RATE = 1e-5"))
    result = pytester.runpytest_inprocess("--precision=bf16-true")
    result.stdout.fnmatch_lines(["*golden-stale*"])
    result.stdout.no_fnmatch_line("*with this the check passes*")


def test_lost_updates_have_master_weights_for_a_cure_and_no_list_of_modules(pytester: pytest.Pytester, project: Project) -> None:
    project(TRAINED.replace("1e-2", "1e-6"))
    result = pytester.runpytest_inprocess("--precision=bf16-true")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["lost-update: *", "    cure: keep float32 master weights*"])
    result.stdout.no_fnmatch_line("*in_float32*")
