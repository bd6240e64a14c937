"""--precision and its ini twin: names, several at once, what is refused, the header, the tests' ids."""

from __future__ import annotations

import pytest
from projects import HEALTHY, OVERFLOWS, Project

from precheck.precisions import ALIASES, PRECISIONS


def test_without_it_goldens_are_checked_in_float32(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY)
    result = pytester.runpytest_inprocess("-v")
    count = "1 check under 32-true: 1 passed, 0 failed; worst r * of * allowed: * in test_it.py::test_healthy[[]32-true]"
    result.stdout.fnmatch_lines(["*test_healthy[[]32-true] PASSED*", count])
    assert result.ret == 0


@pytest.mark.parametrize("names", [{name: name for name in PRECISIONS}, ALIASES], ids=["names", "aliases"])
def test_every_name_and_alias_runs_under_its_full_name(pytester: pytest.Pytester, project: Project, names: dict[str, str]) -> None:
    project(HEALTHY)
    result = pytester.runpytest_inprocess("-v", "--precision=" + ",".join(names))
    result.stdout.fnmatch_lines_random([f"*test_healthy[[]{name}] PASSED*" for name in names.values()])
    result.assert_outcomes(passed=len(set(names.values())))


def test_several_names_make_several_tests(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY, OVERFLOWS)
    result = pytester.runpytest_inprocess("-v", "--precision=bf16,16-mixed,bf16-mixed")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines_random(
        [
            "*test_overflows[[]bf16-mixed] PASSED*",
            "*test_overflows[[]16-mixed] FAILED*",
            "2 checks under bf16-mixed: 2 passed, 0 failed; *",
            "2 checks under 16-mixed: 1 passed, 1 failed; *",
        ]
    )
    assert result.ret == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bf17", "*unknown precision 'bf17'; do you mean bf16? pytest --help lists all"),
        ("bfloat16", "*precision bfloat16 means two things: bf16-mixed*and bf16-true*write --precision=bf16-mixed or --precision=bf16-true*"),
        (",", "*no precision named in ','*"),
        ("", "*no precision named in ''*"),
    ],
)
def test_a_name_that_means_nothing_is_one_line_and_exit_code_4(pytester: pytest.Pytester, project: Project, name: str, message: str) -> None:
    project(HEALTHY, record=False)
    result = pytester.runpytest_inprocess(f"--precision={name}")
    result.stderr.fnmatch_lines([message])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "Traceback" not in result.stderr.str() + result.stdout.str()


def test_the_ini_twin_and_that_the_command_line_wins(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY)
    pytester.makeini("[pytest]\nprecision = bf16-true, 16-mixed\n")
    pytester.runpytest_inprocess("-v").stdout.fnmatch_lines(["*[[]bf16-true] PASSED*", "*[[]16-mixed] PASSED*"])
    result = pytester.runpytest_inprocess("-v", "--precision=tf32")
    result.stdout.fnmatch_lines(["*[[]tf32] PASSED*"])
    result.assert_outcomes(passed=1)


def test_a_wrong_name_in_the_ini_file_is_said_to_be_there(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY, record=False)
    pytester.makeini("[pytest]\nprecision = bf61\n")
    result = pytester.runpytest_inprocess()
    result.stderr.fnmatch_lines(["*the ini file's precision: unknown precision 'bf61'; do you mean bf16? *"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize("name", ["precision", "remedy_trials"])
def test_a_list_where_the_ini_file_has_text_is_refused_in_a_line(pytester: pytest.Pytester, name: str) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    pytester.makepyprojecttoml(f'[tool.pytest.ini_options]\n{name} = ["bf16", "tf32"]\n')
    result = pytester.runpytest_subprocess()  # pytest 9 warns too, in its own process
    result.stderr.fnmatch_lines([f"*the ini file's {name} is a list; write it as text: {name} = \"bf16,tf32\""])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_the_header_says_where_goldens_were_looked_for(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY, record=False)
    pytester.runpytest_inprocess("--precision=bf16", "--golden-dir=goldne").stdout.fnmatch_lines(["precheck: *; goldens: none yet in goldne/"])


def test_the_header_names_the_policy(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY)
    line = "precheck: bf16-mixed (autocast as on {}), device auto, torch 2.*, float32 without tf32; goldens: golden/ *"
    pytester.runpytest_inprocess("--precision=bf16").stdout.fnmatch_lines([line.format("CUDA")])
    pytester.makeini("[pytest]\nprecision_policy = native\n")
    pytester.runpytest_inprocess("--precision=bf16").stdout.fnmatch_lines([line.format("a CPU")])
    pytester.makeini("[pytest]\nprecision_policy = tpu\n")
    refused = pytester.runpytest_inprocess("--precision=bf16")
    refused.stderr.fnmatch_lines(["*precision_policy = 'tpu'; accepted are cuda, native"])
    assert refused.ret == pytest.ExitCode.USAGE_ERROR


def test_a_project_that_does_not_use_precheck_sees_nothing_of_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_inprocess()
    result.stdout.no_fnmatch_line("*precheck:*")
    result.stdout.no_fnmatch_line("*= precheck =*")
    assert result.ret == 0


def test_starting_pytest_imports_neither_torch_nor_numpy(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # other plugins may import them
    pytester.makepyfile("import sys\ndef test_light(): assert not {'torch', 'numpy'} & set(sys.modules)")
    result = pytester.runpytest_subprocess("-p", "precheck.plugin.hooks", "--precision=bf16")
    result.assert_outcomes(passed=1)


def test_the_options_are_in_the_help(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest_inprocess("--help").stdout.str()
    for option in ("--precision=", "--golden-refresh", "--golden-dir", "--golden-unused", "--golden-prune", "--drift-report", "--drift-top"):
        assert option in text
    for twin in ("golden_dir", "golden_unused", "drift_report", "drift_top", "precision_device", "precision_policy"):
        assert f"  {twin} (" in text


@pytest.mark.usefixtures("forked_python")
def test_without_the_plugin_its_tests_have_no_fixture(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY, record=False)
    result = pytester.runpytest_subprocess("-p", "no:precheck", "-p", "no:hypothesispytest")
    result.stdout.fnmatch_lines(["*fixture 'check_precision' not found*"])
