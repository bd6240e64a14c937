"""--precision-model: models without a test file are tests like others; what cannot be checked says what a factory may return."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest

LEAN = ("-p", "no:hypothesispytest", "-p", "no:benchmark")  # what a process of its own would import
FACTORIES = """
import torch


class Overflows(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.wide(x * 1e5) / 1e5


class Silent(torch.nn.Module):
    def forward(self, x):
        return x


def make():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))


def trained():
    return {
        "model": make(), "inputs": torch.randn(4, 8), "loss": lambda out: out.square().mean(),
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3), "steps": 2,
    }


def overflows():
    return {"model": Overflows(), "inputs": torch.randn(4, 8)}


ready = make()


def number(): return 3
def nothing(): return None
def silent(): return Silent()
def raises(): raise LookupError("no weights here")
def wide(width): return torch.nn.Linear(width, 4)
def headless(): return {"inputs": torch.ones(2, 8)}
def misnamed(): return {"model": make(), "input": torch.ones(2, 8)}
def precise(): return {"model": make(), "precision": "bf16"}
def stepless(): return {"model": make(), "steps": 4}
"""

LIAR = """
import torch


class Liar(torch.nn.Module):
    example_input_array = torch.ones(4, 3)

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.layer(x)
"""

BESIDE = "def test_beside(): pass"


@pytest.fixture
def zoo(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with a package of factories and no test."""
    package = pytester.mkpydir("zoo")
    (package / "models.py").write_text(FACTORIES, encoding="utf8")
    return pytester


def counted(result: pytest.RunResult) -> dict[str, int]:
    """What became of the tests; warnings aside, which other plugins of the environment cause."""
    return {what: count for what, count in result.parseoutcomes().items() if what != "warnings"}


def run(zoo: pytest.Pytester, *names: str, options: tuple[str, ...] = ("--precision=bf16",)) -> pytest.RunResult:
    return zoo.runpytest_inprocess(*options, *(f"--precision-model=zoo.models:{name}" for name in names))


def test_a_model_is_checked_where_there_is_no_test_and_no_golden(zoo: pytest.Pytester) -> None:
    result = run(zoo, "make", options=("--precision=bf16,16-true", "-v"))
    result.assert_outcomes(passed=2)
    assert result.ret == 0
    result.stdout.fnmatch_lines([
        "*collected 2 items", "precision-model::zoo.models:make[[]bf16-mixed] PASSED*", "precision-model::zoo.models:make[[]16-true] PASSED*",
        "1 check under bf16-mixed: 1 passed, 0 failed; worst r *",
        'no golden for 1 model, *; to record: pytest --golden-refresh=missing "precision-model::zoo.models:make"',
    ])  # fmt: skip
    assert not (zoo.path / "golden").exists(), "a golden is never created implicitly"


def test_a_fault_fails_with_the_users_line_and_a_command_that_shows_it_again(zoo: pytest.Pytester) -> None:
    result = run(zoo, "overflows", "make", options=("--precision=16-true",))
    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["overflow: output of wide: *", "    by overflow: aten.mul.Tensor at zoo/models.py:11: *"])
    again = re.search(r"to see this again: (pytest .*)", result.stdout.str())
    assert again
    second = zoo.runpytest_inprocess(*shlex.split(again[1])[1:])
    second.assert_outcomes(failed=1)
    second.stdout.fnmatch_lines(["overflow: output of wide: *"])


def test_a_golden_is_recorded_by_the_command_that_is_named_and_then_held_against(zoo: pytest.Pytester) -> None:
    command = re.search(r"to record: (pytest .*)", run(zoo, "trained", "make").stdout.str())
    assert command
    result = zoo.runpytest_inprocess(*shlex.split(command[1])[1:])
    result.stdout.fnmatch_lines(["goldens: 2 written"])
    files = sorted((zoo.path / "golden").rglob("*.safetensors"))
    assert [re.sub("~.*", "", path.name) for path in files] == ["zoo.models-make", "zoo.models-trained"]
    assert all(re.fullmatch(r"[\w.~-]+", part) for path in files for part in path.relative_to(zoo.path).parts)
    after = run(zoo, "trained", "make", options=("--precision=32-true,bf16,16",))
    after.assert_outcomes(passed=6)
    after.stdout.no_fnmatch_line("*no golden*")
    models = zoo.path / "zoo" / "models.py"
    models.write_text(FACTORIES.replace("(8, 16)", "(8, 16, bias=False)"), encoding="utf8")
    result = zoo.runpytest_inprocess(*LEAN, "--precision-model=zoo.models:make")
    result.stdout.fnmatch_lines(["golden-stale: the golden is out of date: *"])


def test_weights_are_drawn_the_same_each_time_and_the_sessions_random_numbers_are_left_alone(zoo: pytest.Pytester) -> None:
    zoo.makeconftest("""
        import pytest, torch
        @pytest.fixture(autouse=True)
        def drawn():
            torch.manual_seed(7)
            expected = torch.rand(3)
            torch.manual_seed(7)
            yield
            assert torch.equal(torch.rand(3), expected)
    """)
    run(zoo, "make", "ready", options=("--golden-refresh",)).assert_outcomes(passed=2)
    zoo.runpytest_subprocess(*LEAN, "--precision-model=zoo.models:make", "--precision-model=zoo.models:ready").assert_outcomes(passed=2)


def test_models_run_beside_the_tests_that_there_are(zoo: pytest.Pytester) -> None:
    zoo.makepyfile(test_beside=BESIDE)
    assert counted(run(zoo, "make")) == {"passed": 2}
    assert counted(run(zoo, "make", options=("test_beside.py", "--precision=bf16"))) == {"passed": 2}


def test_a_node_id_alone_runs_that_model_alone(zoo: pytest.Pytester) -> None:
    zoo.makepyfile(test_beside=BESIDE)
    zoo.makeini("[pytest]\nprecision_model =\n    zoo.models:overflows\n    zoo.models:make\n")
    one = zoo.runpytest_inprocess("--precision=bf16,16-mixed", "precision-model::zoo.models:make[16-mixed]", "-v")
    assert counted(one) == {"passed": 1}
    one.stdout.fnmatch_lines(["precision-model::zoo.models:make[[]16-mixed] PASSED*"])
    result = zoo.runpytest_inprocess("--precision=bf16", "precision-model::zoo.models:make", "test_beside.py")
    assert counted(result) == {"passed": 2}


def test_from_an_inner_folder_node_ids_are_typed_as_they_are_shown(zoo: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo.makeini("[pytest]\nprecision_model = zoo.models:overflows\n")
    monkeypatch.chdir(zoo.mkdir("inner"))
    shown = re.search(r"FAILED (\S+)", zoo.runpytest_inprocess("--precision=16-true", "-rf").stdout.str())
    assert shown
    assert shown[1] == "../precision-model::zoo.models:overflows[16-true]"
    zoo.runpytest_inprocess("--precision=16-true", shown[1]).assert_outcomes(failed=1)


def test_the_ini_twin_and_a_model_of_the_command_line_instead(zoo: pytest.Pytester) -> None:
    zoo.makeini("[pytest]\nprecision_model =\n    zoo.models:make\n    zoo.models:ready\n")
    assert counted(zoo.runpytest_inprocess("--precision=bf16")) == {"passed": 2}
    assert counted(run(zoo, "trained")) == {"passed": 1}


def test_goldens_of_models_are_unused_only_where_the_ini_file_says_which_models_there_are(zoo: pytest.Pytester) -> None:
    run(zoo, "make", "ready", options=("--golden-refresh",))
    run(zoo, "make").stdout.no_fnmatch_line("*no test uses*")
    zoo.makepyfile(test_beside=BESIDE)
    zoo.runpytest_inprocess().stdout.no_fnmatch_line("*no test uses*")
    zoo.makeini("[pytest]\nprecision_model = zoo.models:make\n")
    zoo.runpytest_inprocess().stdout.fnmatch_lines(["goldens that no test uses: 1 *", "  golden/precision-model~*/zoo.models-ready~*.safetensors"])


@pytest.mark.parametrize(
    ("options", "outcomes"),
    [
        (("-k", "make"), {"passed": 1, "deselected": 2}),
        (("-k", "not overflows"), {"passed": 2, "deselected": 1}),
        (("--deselect", "precision-model::zoo.models:overflows"), {"passed": 2, "deselected": 1}),
        (("-x",), {"failed": 1}),
    ],
)
def test_the_options_that_select_and_stop(zoo: pytest.Pytester, options: tuple[str, ...], outcomes: dict[str, int]) -> None:
    result = run(zoo, "overflows", "make", "ready", options=("--precision=16-true", *options))
    assert counted(result) == outcomes


def test_last_failed_runs_the_model_that_failed(zoo: pytest.Pytester) -> None:
    run(zoo, "make", "overflows", options=("--precision=16-true",)).assert_outcomes(passed=1, failed=1)
    again = run(zoo, "make", "overflows", options=("--precision=16-true", "--lf"))
    assert counted(again) == {"failed": 1, "deselected": 1}


def test_junit_and_the_reports_hold_models_as_they_hold_tests(zoo: pytest.Pytester) -> None:
    run(zoo, "make", options=("--precision=bf16", "--junitxml=junit.xml", "--drift-report=json:drift.json"))
    case = ElementTree.parse(zoo.path / "junit.xml").getroot().find(".//testcase")
    assert case is not None
    assert (case.get("classname"), case.get("name")) == ("precision-model", "zoo.models:make[bf16-mixed]")
    assert case.find(".//property[@name='precheck_precision']") is not None
    tests = json.loads((zoo.path / "drift.json").read_text(encoding="utf8"))["tests"]
    assert [test["nodeid"] for test in tests] == ["precision-model::zoo.models:make[bf16-mixed]"]
    assert tests[0]["report"]["ops"], "every op's drift was asked for"


@pytest.mark.usefixtures("forked_python")
def test_a_worker_of_xdist_checks_models_too(zoo: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    result = zoo.runpytest_subprocess(
        *LEAN, "-n1", "--precision=16-true", "--precision-model=zoo.models:make", "--precision-model=zoo.models:overflows",
    )  # fmt: skip
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["overflow: output of wide: *", "2 checks under 16-true: 1 passed, 1 failed; *"])


def test_the_selftest_of_a_model(zoo: pytest.Pytester) -> None:
    run(zoo, "trained", options=("--golden-refresh",))
    result = run(zoo, "trained", options=("--precision=bf16-mixed", "--precheck-selftest"))
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*= precheck selftest =*"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mak", "--precision-model=zoo.models:mak: zoo.models has no mak; do you mean make?"),
        ("number", "--precision-model=zoo.models:number gave an int; return a torch.nn.Module, or a dict of measure's arguments, as in {*}"),
        ("nothing", "--precision-model=zoo.models:nothing gave nothing (None); return a torch.nn.Module, or *"),
        ("silent", "*silent gave no inputs, and its model (a Silent) does not say what it takes, by example_input_array, *; return a dict of *"),
        ("wide", "*:wide is called without arguments: missing a required argument: 'width'; give them defaults, or *"),
        ("headless", "*:headless gave a dict without a model; return a dict of measure's arguments, as in {*}"),
        ("misnamed", "*:misnamed gave 'input' among the arguments; do you mean inputs?"),
        ("precise", "*:precise gave a precision; leave it out of the dict, since --precision says under which the model runs"),
        ("stepless", "steps=4 without an optimizer; pass optimizer=*"),
    ],
)
def test_what_cannot_be_checked_fails_with_one_message(zoo: pytest.Pytester, name: str, message: str) -> None:
    result = run(zoo, name, "make")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_what_a_factory_raises_is_shown_where_it_was_raised(zoo: pytest.Pytester) -> None:
    result = run(zoo, "raises")
    result.stdout.fnmatch_lines(["E   LookupError: no weights here", "zoo/models.py:*: LookupError"])
    result.stdout.no_fnmatch_line("*factory.py*")
    assert result.ret == 1


def test_a_model_that_takes_other_inputs_than_it_says_is_told_which_it_was_given(zoo: pytest.Pytester) -> None:
    (zoo.path / "zoo" / "liar.py").write_text(LIAR, encoding="utf8")
    result = zoo.runpytest_inprocess("--precision-model=zoo.liar:Liar")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *shapes cannot be multiplied*", "zoo/liar.py:*: RuntimeError"])
    told = "The factory gave no inputs; those derived from the model are input float32 (4, 3). If it takes others, return a dict of *"
    result.stdout.fnmatch_lines(["*Captured precheck call*", told])


def test_a_module_that_is_not_there_and_one_that_cannot_be_imported(zoo: pytest.Pytester) -> None:
    (zoo.path / "zoo" / "broken.py").write_text("import not_installed\n", encoding="utf8")
    result = zoo.runpytest_inprocess("--precision-model=zoos.models:make", "--precision-model=zoo.broken:make")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["--precision-model=zoos.models:make: there is no module zoos in the folder where pytest was started, *pythonpath"])
    result.stdout.fnmatch_lines(["zoo/broken.py:1: ModuleNotFoundError"])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("zoo.models", "*--precision-model: 'zoo.models' is not of the form package.module:factory, as in models.gpt:make_model"),
        ("zoo.models:", "*'zoo.models:' is not of the form *"),
        ("zoo.models:make()", "*'zoo.models:make()' is not of the form *"),
        ("zoo/models.py:make", "*'zoo/models.py:make' names a file; accepted is package.module:factory, as in zoo.models:make"),
    ],
)
def test_what_is_no_name_of_a_factory_is_refused(zoo: pytest.Pytester, spec: str, message: str) -> None:
    result = zoo.runpytest_inprocess(f"--precision-model={spec}")
    result.stderr.fnmatch_lines([message])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_node_id_of_no_model_is_refused(zoo: pytest.Pytester) -> None:
    result = zoo.runpytest_inprocess("precision-model::zoo.models:make[fp4]")
    result.stderr.fnmatch_lines(["*not found: precision-model::zoo.models:make[[]fp4]; there is precision-model::zoo.models:make[[]32-true]"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_the_path_is_given_back(zoo: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    outside = [path for path in sys.path if Path(path) != zoo.path]
    monkeypatch.setattr(sys, "path", list(outside))
    run(zoo, "make").assert_outcomes(passed=1)
    assert [path for path in sys.path if Path(path) == zoo.path] == []
