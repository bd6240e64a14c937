"""A model that runs in float32 and not in a precision: a verdict of its own, in one line, counted apart."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from projects import Project

FILLS = '''
class Fills(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.softmax(self.inner(x).masked_fill(x > 1, -1e10), -1)


def test_fills(check_precision):
    check_precision.needs_golden = False
    torch.manual_seed(0)
    check_precision(Fills(), data(), loss=loss)
'''

MIXES = '''
class Mixes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(x.float())


def test_mixes(check_precision):
    torch.manual_seed(0)
    check_precision(Mixes(), data())
'''

RAISES = '''
class Raises(torch.nn.Module):
    def forward(self, x):
        raise LookupError("whatever the precision")

def test_raises(check_precision):
    check_precision.needs_golden = False
    check_precision(Raises(), data())
'''

SPARSE = '''
def product(edges):
    return edges @ torch.ones(8, 3)


def test_sparse(check_precision):
    check_precision.needs_golden = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_precision(product, torch.eye(8).to_sparse_csr())
'''

SAID = "does not run in bf16-true: test_it.py:* mat1 and mat2 must have the same dtype, but got Float and BFloat16"


def test_one_line_and_a_count_of_its_own(pytester: pytest.Pytester, project: Project) -> None:
    project(MIXES)
    result = pytester.runpytest_inprocess("--precision=bf16-true,bf16", "--junitxml=junit.xml")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            f"{SAID}; cure: cast one of the two: the float32 operand to bfloat16, or the other to float32 (in float32 it runs; "
            "the traceback: pytest --full-trace)",
            "1 check under bf16-true: 0 passed, 0 failed, 1 of a model that does not run",
            f"test_it.py::test_mixes[[]bf16-true]: {SAID}; cure: *",
        ]
    )
    result.stdout.no_fnmatch_line("*Error*")
    result.stdout.no_fnmatch_line("*During handling*")
    properties = {each.get("name"): each.get("value", "") for each in ElementTree.parse(pytester.path / "junit.xml").iter("property")}
    assert properties["precheck_verdict"].startswith("does not run in bf16-true: test_it.py:")


def test_a_mask_that_float16_cannot_hold_is_told_with_a_number_that_it_holds(pytester: pytest.Pytester, project: Project) -> None:
    """Under 16-mixed the search for a loss scale meets it first."""
    project(FILLS, record=False)
    result = pytester.runpytest_inprocess("--precision=16-mixed,16-true")
    told = "value cannot be converted * without overflow; cure: give a number that float16 holds, such as torch.finfo(torch.float16).min (*"
    result.stdout.fnmatch_lines([f"does not run in 16-{kind}: test_it.py:* {told}" for kind in ("mixed", "true")])


def test_the_line_is_that_of_the_models_own_code(pytester: pytest.Pytester, project: Project) -> None:
    project(MIXES)
    line = next(number for number, text in enumerate((pytester.path / "test_it.py").read_text().splitlines(), 1) if "self.inner(x.float())" in text)
    pytester.runpytest_inprocess("--precision=bf16-true").stdout.fnmatch_lines([f"does not run in bf16-true: test_it.py:{line} mat1*"])


def test_a_product_that_torch_lacks_is_told_with_its_line_and_what_to_pass(pytester: pytest.Pytester, project: Project) -> None:
    project("import warnings\n" + SPARSE, record=False)
    pytester.runpytest_inprocess("--precision=bf16").stdout.fnmatch_lines(
        [
            "does not run in bf16-mixed: test_it.py:* inputs is a CSR tensor, of which torch has no product in bfloat16 (*); "
            "pass it as tensor.to_sparse_coo(), or multiply in float32, *",
            "*1 of a model that does not run",
        ]
    )


def test_the_traceback_is_there_for_who_asks(pytester: pytest.Pytester, project: Project) -> None:
    project(MIXES)
    result = pytester.runpytest_inprocess("--precision=bf16-true", "--full-trace")
    result.stdout.fnmatch_lines(["E * RuntimeError: mat1 and mat2*", "*1 of a model that does not run"])


def test_reports_say_it(pytester: pytest.Pytester, project: Project) -> None:
    project(MIXES)
    forms = ("json", "markdown", "sarif", "html", "term")
    files = [f"--drift-report={form}:drift.{form}" for form in forms if form != "term"]
    pytester.runpytest_inprocess("--precision=bf16-true", *files)
    (test,) = json.loads((pytester.path / "drift.json").read_text())["tests"]
    assert test["does_not_run"]
    assert test["error"].startswith("does not run in bf16-true: test_it.py:")
    assert (pytester.path / "drift.markdown").read_text().startswith("## precheck: 0 of 1 check passed, 1 of a model that does not run\n")
    (told,) = json.loads((pytester.path / "drift.sarif").read_text())["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert "does not run in bf16-true" in told["message"]["text"]
    assert "1 of a model that does not run" in (pytester.path / "drift.html").read_text()


def test_a_model_of_the_command_line(pytester: pytest.Pytester, project: Project) -> None:
    project(MIXES, "\ndef make(): return {'model': Mixes(), 'inputs': data()}\n", record=False, name="models")
    result = pytester.runpytest_inprocess("--precision-model=models:make", "--precision=bf16-true")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["does not run in bf16-true: models.py:* mat1*", "*1 of a model that does not run"])


def test_a_model_that_raises_in_float32_too_is_as_it_was(pytester: pytest.Pytester, project: Project) -> None:
    project(RAISES, record=False)
    result = pytester.runpytest_inprocess("--precision=bf16-true")
    result.stdout.fnmatch_lines(["E * LookupError: whatever the precision", "*0 passed, 0 failed, 1 without a verdict"])


PAIRS = '''
def test_port(check_parity):
    check_parity(torch.nn.Linear(8, 8), Mixes(), torch.randn(4, 8))


def test_batch(check_invariance):
    check_invariance(Mixes(), torch.randn(4, 8), over=("batch",))
'''


def test_a_side_of_a_pair_is_told_in_one_line(pytester: pytest.Pytester, project: Project) -> None:
    project(MIXES.partition("def test_mixes")[0], PAIRS, record=False)
    result = pytester.runpytest_inprocess("--precision=bf16-true")
    said = SAID.removeprefix("does not run in bf16-true: ")
    result.stdout.fnmatch_lines([f"does not run in bf16-true: other, {said}; cure: *", f"{SAID}; cure: *", "*2 of a model that does not run"])
    result.stdout.no_fnmatch_line("*RuntimeError*")


def test_a_pair_that_runs_nowhere_keeps_its_exception(pytester: pytest.Pytester, project: Project) -> None:
    pair = "\ndef test_port(check_parity):\n    check_parity(torch.nn.Linear(8, 8), Raises(), torch.randn(4, 8))\n"
    project(RAISES.partition("def test_raises")[0], pair, record=False)
    pytester.runpytest_inprocess("--precision=bf16-true").stdout.fnmatch_lines(["E * LookupError: whatever the precision"])


LACKS = """
def test_ctc(check_precision):
    torch.manual_seed(0)
    labels, lengths = torch.ones(2, 3, dtype=torch.long), torch.full((2,), 8)
    ctc = torch.nn.CTCLoss()
    check_precision(torch.nn.Linear(4, 5), torch.randn(8, 2, 4), loss=lambda out: ctc(out, labels, lengths, lengths // 3 + 1))
"""


def test_an_op_that_the_device_lacks_in_a_low_format_is_told_with_a_cure(pytester: pytest.Pytester, project: Project) -> None:
    project(LACKS)
    told = "does not run in 16-true: test_it.py:* \"ctc_loss_cpu\" not implemented for 'Half'; cure: call .float() on what this line reads, or*"
    pytester.runpytest_inprocess("--precision=16-true").stdout.fnmatch_lines([told])


INDEXED = """
class Places(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.table = torch.nn.Linear(8, 1), torch.nn.Embedding(10, 8)
        torch.nn.init.ones_(self.gate.weight)

    def forward(self, x):
        score = self.gate(x * {by}).squeeze(-1)
        return self.table((score / (score.abs().max() + 1) * 4 + 5).long())

def test_places(check_precision):
    torch.manual_seed(0)
    check_precision(Places(), torch.rand(4, 8) * 10 + 10)
"""


def test_an_index_that_inf_became_is_told_with_the_overflow(pytester: pytest.Pytester, project: Project) -> None:
    project(INDEXED.format(by=2000))
    told = (
        "does not run in 16-mixed: test_it.py:* IndexError: index out of range in self; by overflow: aten.addmm.default at test_it.py:*: * in the "
        "reference is beyond the largest float16, 65504; cure: run module gate in float32*"
    )
    pytester.runpytest_inprocess("--precision=16-mixed").stdout.fnmatch_lines([told])


GUARDED = """
class Guarded(torch.nn.Module):
    def forward(self, x):
        y = x * 1e5
        {guard}
        return x

def test_guarded(check_precision):
    check_precision.needs_golden = False
    check_precision(Guarded(), data())
"""
FINITE = 'if not y.isfinite().all(): raise RuntimeError("not finite:\\n" + str(y))'
OVERFLOWED = "; by overflow: aten.mul.Tensor at test_it.py:*: * in the reference is beyond the largest float16, 65504; cure: *"


@pytest.mark.parametrize(
    ("guard", "told"),
    [
        (FINITE, "not finite" + OVERFLOWED),
        ("assert y.isfinite().all(), 'not finite'", "not finite" + OVERFLOWED),
        ("torch.distributions.Normal(y - y, 1.0, validate_args=True)", "Expected parameter loc *found invalid values" + OVERFLOWED),
        ("x = x + 1 / float(x[0, 0].abs() * 1e-9)", "ZeroDivisionError: *; by underflow: *the code raised ZeroDivisionError; cure: *"),
        ("if x.dtype != torch.float32: raise RuntimeError('float32 only')", "float32 only (in float32 it runs; *"),
    ],
    ids=["raise", "assert", "torch", "zero", "other"],
)  # fmt: skip
def test_what_a_guard_in_python_saw_is_told_with_its_cause(pytester: pytest.Pytester, project: Project, guard: str, told: str) -> None:
    """A guard says what it saw, and not where that came from. The last one has seen no Inf, so none is told."""
    project(GUARDED.format(guard=guard), record=False)
    pytester.runpytest_inprocess("--precision=16-true").stdout.fnmatch_lines([f"does not run in 16-true: test_it.py:* {told}"])


LISTED = """
class Listed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = CONTAINER([torch.nn.Linear(4, 4)])

    def forward(self, x):
        return self.layers[0](x)


def test_listed(check_precision):
    check_precision.needs_golden = False
    check_precision(Listed(), torch.ones(2, 4))
"""


@pytest.mark.parametrize(("container", "runs"), [("list", False), ("torch.nn.ModuleList", True)])
def test_modules_in_a_list_are_told_to_be_registered(container: str, runs: bool, pytester: pytest.Pytester, project: Project) -> None:
    """Torch does not find them, so a conversion leaves them in float32."""
    project(LISTED.replace("CONTAINER", container), record=False)
    result = pytester.runpytest_inprocess("--precision=bf16-true")
    if runs:
        result.assert_outcomes(passed=1)
    else:
        result.stdout.fnmatch_lines(["does not run in bf16-true: *cure: keep the modules in layers in a torch.nn.ModuleList, *; or cast *"])
