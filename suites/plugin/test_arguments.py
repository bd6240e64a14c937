"""A fixture that is called with arguments that it does not take: one line that says what to write."""

from __future__ import annotations

import pytest
from projects import Project

CALLS = {
    "check_precision(make(), data(), precision='bf16')": "check_precision() has no argument 'precision': type pytest --precision=bf16, or mark *",
    "check_precision(make(), data(), tolerance=1e-3)": "check_precision() has no argument 'tolerance': you set no tolerance, since noise runs *",
    "check_precision(make(), data(), optimiser=None)": "check_precision() has no argument 'optimiser': do you mean optimizer?",
    "check_precision(make(), data(), golden='x')": "check_precision() has no argument 'golden': it has model, inputs, loss, optimizer, steps, *",
    "check_precision(make())": "check_precision() needs inputs too: check_precision(model, inputs)",
    "check_precision(make(), data(), data())": "2 inputs were passed one by one; pass them as a tuple: *",
    "watch_precision(precision='bf16')": "watch_precision() has no argument 'precision': type pytest --precision=bf16, or mark the test: *",
    "watch_precision(make(), {})": "watch_precision(): too many positional arguments; write watch_precision(model), and name what follows",
    "check_parity(make(), data())": "check_parity() needs inputs too: check_parity(model, other, inputs)",
    "check_parity(make(), make(), data(), mach={})": "check_parity() has no argument 'mach': do you mean match?",
    "check_invariance(make())": "check_invariance() needs inputs too: check_invariance(model, inputs)",
    "check_kernel(torch.relu, torch.relu, data(), budgt=1)": "check_kernel() has no argument 'budgt': do you mean budget?",
}


def test_what_is_wrong_is_said_in_one_line(pytester: pytest.Pytester, project: Project) -> None:
    tests = [f"def test_{number}({call.partition('(')[0]}):\n    {call}\n" for number, call in enumerate(CALLS)]
    project(*tests, record=False)
    result = pytester.runpytest_inprocess("--precision=bf16")
    result.assert_outcomes(failed=len(CALLS))
    result.stdout.fnmatch_lines(list(CALLS.values()))
    result.stdout.no_fnmatch_line("*TypeError*")
    result.stdout.fnmatch_lines([f"*0 passed, 0 failed, {len(CALLS) - 1} without a verdict*"])
