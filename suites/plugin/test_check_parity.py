"""check_parity: two implementations as a test, under each precision, with markers, known failures, reports and SARIF."""

from __future__ import annotations

import json
import re

import pytest
from projects import Project

PAIR = '''
class Port(torch.nn.Module):
    def __init__(self, source, eps):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(16, 32), torch.nn.LayerNorm(32, eps=eps), torch.nn.Linear(32, 4)
        for mine, theirs in zip((self.first, self.norm, self.last), source):
            mine.load_state_dict(theirs.state_dict())

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


def pair(eps):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32, eps=1e-6), torch.nn.Linear(32, 4))
    return model, Port(model, eps), torch.randn(8, 16)
'''
GOOD = PAIR + '''
def test_good(check_parity):
    report = check_parity(*pair(1e-6), loss=lambda out: out.float().square().mean())
    assert report.verdict in ("bitwise", "rounding")
    assert report.precision == check_parity.precision.name
'''
BAD = PAIR + '''
def test_bad(check_parity):
    check_parity(*pair(1e-3), match={"norm": "1"})
'''


def test_a_port_passes_under_each_precision(project: Project, pytester: pytest.Pytester) -> None:
    project(GOOD, record=False)
    outcome = pytester.runpytest_inprocess("--precision=32-true,bf16-mixed,16-mixed", "-v")
    outcome.assert_outcomes(passed=3)
    assert not list(pytester.path.rglob("*.safetensors"))
    pytester.runpytest_inprocess("--golden-refresh=missing", "--golden-unused=fail").assert_outcomes(passed=1)
    assert not list(pytester.path.rglob("*.safetensors"))


def test_a_port_with_a_fault_fails_with_the_place_and_the_cure(project: Project, pytester: pytest.Pytester) -> None:
    project(BAD, record=False)
    outcome = pytester.runpytest_inprocess()
    outcome.assert_outcomes(failed=1)
    outcome.stdout.re_match_lines([
        r".*different: output: other computes something else: even without rounding it differs from model by .*; "
        r"they first differ in norm, at test_it\.py:\d+: eps is 0\.001 in other's norm, and 1e-06 in model's: with 1e-06 they agree.*",
        r".*in module norm.*", r".*cure: correct the place named.*", r".*to see this again: pytest .*test_bad.*",
    ])  # fmt: skip
    outcome.stdout.no_fnmatch_line("*Traceback*")


def test_how_far_it_is_off_is_said_once(project: Project, pytester: pytest.Pytester) -> None:
    project(BAD, record=False)
    text = pytester.runpytest_inprocess("-rN").stdout.str()
    (r,) = re.findall(r"\(r = ([\d.e+]+), 3 allowed\)", text)
    assert text.count(r) == 1
    assert "worst tensors" not in text  # it is the only tensor
    assert "; worst: output in test_it.py::test_bad" in text


def test_markers_known_failures_and_forms_work_as_for_checks(project: Project, pytester: pytest.Pytester) -> None:
    marked = BAD.replace("def test_bad", '@pytest.mark.expect_finding("different")\ndef test_expected', 1)
    allowed = BAD.split("def test_bad")[1]
    project(
        marked, '@pytest.mark.allow_finding("different", reason="a newer eps")\ndef test_allowed' + allowed, "def test_bad" + allowed,
        record=False,
    )  # fmt: skip
    pytester.runpytest_inprocess().assert_outcomes(passed=2, failed=1)
    outcome = pytester.runpytest_inprocess("--drift-report=json:drift.json", "--drift-report=sarif:drift.sarif", "--drift-report=html:drift.html")
    outcome.assert_outcomes(passed=2, failed=1)
    session = json.loads((pytester.path / "drift.json").read_text())
    assert {test["report"]["facts"]["verdict"] for test in session["tests"]} == {"different"}
    results = json.loads((pytester.path / "drift.sarif").read_text())["runs"][0]["results"]
    assert {result["ruleId"] for result in results} == {"different"}
    assert any("test_it.py" in json.dumps(result["locations"]) for result in results)
    assert "other computes something else" in (pytester.path / "drift.html").read_text()
    pytester.runpytest_inprocess("--known-failures-write")
    pytester.runpytest_inprocess().assert_outcomes(passed=2, xfailed=1)


def test_what_cannot_be_compared_fails_in_one_line_and_what_a_model_raises_is_shown(project: Project, pytester: pytest.Pytester) -> None:
    project(
        PAIR,
        'def test_name(check_parity):\n    check_parity(*pair(1e-6), match={"nrm": "1"})',
        'def test_raises(check_parity):\n    check_parity(*pair(1e-6)[:2], torch.ones(3, 5))',
        record=False,
    )
    outcome = pytester.runpytest_inprocess()
    outcome.assert_outcomes(failed=2)
    outcome.stdout.fnmatch_lines(["*match names 'nrm', which other has not; it has first.weight, *", "*mat1 and mat2 shapes cannot be multiplied*"])


def test_a_model_that_depends_on_its_batch_fails_check_invariance(project: Project, pytester: pytest.Pytester) -> None:
    project(
        '''
class Centred(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.first, self.dim = torch.nn.Linear(8, 8), dim

    def forward(self, x):
        hidden = self.first(x)
        return hidden - hidden.mean(self.dim, keepdim=True)


def test_rows(check_invariance):
    report = check_invariance(Centred(-1), torch.randn(4, 8))
    assert set(report.facts["variations"]) == {"repeat", "order", "batch of 1"} | {each for each in report.facts["variations"] if "thread" in each}


def test_batch(check_invariance):
    check_invariance(Centred(0), torch.randn(4, 8), ("batch",))


def test_unknown(check_invariance):
    check_invariance(Centred(0), torch.randn(4, 8), ("bach",))
''',
        record=False,
    )
    outcome = pytester.runpytest_inprocess()
    outcome.assert_outcomes(passed=1, failed=2)
    outcome.stdout.fnmatch_lines(
        ["*different: batch of 1: output: the run in this way computes something*", "*there is no variation 'bach'; do you mean batch[?]"]
    )


HIDDEN = PAIR + '''
def test_scaled(check_parity):
    check_parity(lambda x: x * 1.0, lambda x: x * 1.0001, torch.randn(8, 16))

def test_gelu(check_parity):
    gelu = torch.nn.functional.gelu
    check_parity(gelu, lambda x: gelu(x, approximate="tanh"), torch.randn(8, 16))
'''


def test_what_a_low_precision_hides_is_told_with_the_precision_that_tells(project: Project, pytester: pytest.Pytester) -> None:
    project(HIDDEN, record=False)
    outcome = pytester.runpytest_inprocess("--precision=bf16-true")
    outcome.assert_outcomes(passed=2)
    outcome.stdout.fnmatch_lines_random([
        "not looked at: whether the two models differ by less than bf16-true rounds (--precision=32-true does) in *test_scaled*",
        "the two models differ, by less than bf16-true rounds (--precision=32-true judges that) in *test_gelu*",
    ])  # fmt: skip


def test_nothing_is_hidden_where_float32_is_compared_too(project: Project, pytester: pytest.Pytester) -> None:
    project(HIDDEN, record=False)
    for wanted in ("--precision=32-true", "--precision=32-true,bf16-true"):
        outcome = pytester.runpytest_inprocess(wanted)
        outcome.stdout.no_fnmatch_line("*by less than*")
