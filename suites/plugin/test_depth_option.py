"""--precision-depth, its ini twin and the argument of check_precision."""

from __future__ import annotations

import pytest
from projects import Project

COUNTED = '''
class Counted(torch.nn.Module):
    """Counts positions in the model's own low format; the sum beside it hides that."""

    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(8, 8)

    def forward(self, x):
        angles = torch.arange(300, dtype=torch.bfloat16).float() / 300
        return self.wide(x) + 1e-3 * angles.sin().mean()


def test_counted(check_precision):
    torch.manual_seed(0)
    check_precision(Counted(), data()ARGUMENT)
'''


@pytest.mark.parametrize(
    ("option", "ini", "argument", "passes"),
    [
        ([], "", "", False),
        (["--precision-depth=ops"], "", "", False),
        (["--precision-depth=boundaries"], "", "", True),
        ([], "precision_depth = boundaries", "", True),
        (["--precision-depth=ops"], "precision_depth = boundaries", "", False),
        (["--precision-depth=ops"], "", ", depth='boundaries'", True),
        (["--precision-depth=boundaries"], "", ", depth='ops'", False),
    ],
)
def test_the_nearest_word_counts(option: list[str], ini: str, argument: str, passes: bool, pytester: pytest.Pytester, project: Project) -> None:
    project(COUNTED.replace("ARGUMENT", argument))
    pytester.makeini(f"[pytest]\n{ini}\n")
    result = pytester.runpytest_inprocess("--precision=bf16", "-o", "remedy_trials=0", *option)
    result.assert_outcomes(passed=int(passes), failed=int(not passes))
    if not passes:
        result.stdout.fnmatch_lines(["*integer-rounding: aten.arange.default at *test_it.py:*whole numbers up to 299 in bfloat16*"])


def test_another_depth_is_refused(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("-o", "precision_depth=deep")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*precision_depth = 'deep'; accepted are ops, boundaries"])
