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


FAR = '''
class Far(torch.nn.Module):
    def forward(self, x):
        return x * 1e6 / 1e6


def test_part(check_precision):
    torch.manual_seed(0)
    parts = torch.nn.Linear(8, 8), Far(), torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)
    check_precision(torch.nn.Sequential(*parts), data())


def test_most(check_precision):
    torch.manual_seed(0)
    check_precision(torch.nn.Sequential(torch.nn.Linear(8, 8), Far()), data(), loss=loss)


def test_own_code(check_precision):
    torch.manual_seed(0)

    class Model(Far):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))

        def forward(self, x):
            return self.layers(super().forward(self.layers(x)))

    check_precision(Model(), data())
'''


def test_a_part_of_the_model_is_a_cure(pytester: pytest.Pytester, project: Project) -> None:
    project(FAR)
    result = pytester.runpytest_inprocess("--precision=16-true", "-k", "part")
    cure = ["with this the check passes (tried):", "    from precheck import in_float32", '    in_float32(model, ["1"])']
    result.stdout.fnmatch_lines(["overflow: *", *cure])


def test_most_of_the_model_is_none(pytester: pytest.Pytester, project: Project) -> None:
    """One of two modules may be kept in float32. The model's own code can only be kept together with all of them."""
    project(FAR)
    result = pytester.runpytest_inprocess("--precision=16-true", "-k", "most or own_code")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*test_most*", '    in_float32(model, ["1"])', "*test_own_code*"])
    own = result.stdout.str().split("test_own_code[16-true] ___")[1]
    assert "in_float32(model" not in own.split("short test summary")[0]
