"""The fixture gpu_benchmark: rows in pytest-benchmark's table and JSON, lines at the end, and what is said where it cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pytest_benchmark")

FAST = ("--benchmark-min-rounds=2", "--benchmark-max-time=0", "--benchmark-columns=median,rounds")
CODE = """
    import pytest
    import torch

    @pytest.mark.parametrize("width", [8])
    def test_step(gpu_benchmark, width):
        model, x = torch.nn.Linear(width, width), torch.ones(4, width)
        found = gpu_benchmark(model, x, loss=lambda out: out.sum(), precisions=["bf16-true", "tf32"])
        assert found["bf16-true"].r < 3
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest-benchmark does nothing in a worker, which it knows by this, and a run inside one of ours would take itself for one."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


@pytest.fixture
def saved(pytester: pytest.Pytester) -> Any:
    """saved(*options): what the run of CODE writes into --benchmark-json."""

    def run(*options: str) -> Any:
        pytester.makepyfile(CODE)
        pytester.runpytest_inprocess(*FAST, "--benchmark-json=out.json", *options).assert_outcomes(passed=1)
        return json.loads((pytester.path / "out.json").read_text(encoding="utf8"))

    return run


def test_each_precision_is_a_row_of_the_table_and_a_line_at_the_end(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=CODE)
    result = pytester.runpytest_inprocess(*FAST)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*= precheck: speed, memory and error =*",
            "test_it.py::test_step[[]8], beside 32-true on cpu: * a step, median of 2 interleaved rounds",
            "  bf16-true: *, 0.*× memory, r = *",
            "  tf32: emulated here, so neither timed nor weighed, r = *",
        ]
    )
    result.stdout.fnmatch_lines_random(["*benchmark 'test_step[[]8]': 2 tests*", "test_step[[]8-32-true] * 2", "test_step[[]8-bf16-true] * 2"])


def test_json_has_the_error_beside_the_speed_and_names_the_device(saved: Any) -> None:
    content = saved()
    assert content["machine_info"]["accelerator"]["device"] == "cpu"
    rows = {row["params"]["precision"]: row for row in content["benchmarks"]}
    assert set(rows) == {"32-true", "bf16-true"}, "what is emulated has no time to show"
    row, base = rows["bf16-true"], rows["32-true"]
    assert (row["name"], row["param"], row["group"]) == ("test_step[8-bf16-true]", "8-bf16-true", "test_step[8]")
    told = row["extra_info"]["precheck"]
    assert told["speedup"] == pytest.approx(base["stats"]["median"] / row["stats"]["median"])
    assert told["memory_share"] == told["memory"] / base["extra_info"]["precheck"]["memory"]
    assert told["line"].startswith("bf16-true: ")
    assert told["r"] < told["allowed"]


def test_rows_of_two_runs_are_compared(pytester: pytest.Pytester, saved: Any) -> None:
    saved("--benchmark-save=first")
    result = pytester.runpytest_inprocess(*FAST, "--benchmark-compare=0001")
    result.stdout.fnmatch_lines_random(["test_step[[]8-bf16-true] (0001_first)*", "test_step[[]8-bf16-true] (NOW)*"])
    for text in (result.stdout.str(), result.stderr.str()):
        assert "machine_info is different" not in text
        assert "not on the same device" not in text


def test_a_run_on_another_device_is_told_at_the_end(pytester: pytest.Pytester, saved: Any) -> None:
    saved("--benchmark-save=first")
    (file,) = (Path(pytester.path) / ".benchmarks").rglob("*.json")
    content = json.loads(file.read_text(encoding="utf8"))
    content["machine_info"]["accelerator"] |= {"device": "NVIDIA H200", "driver": "570.86"}
    content["datetime"] = "2026-11-21T17:00:00"
    file.write_text(json.dumps(content), encoding="utf8")
    result = pytester.runpytest_inprocess(*FAST, "--benchmark-compare=0001")
    result.stdout.fnmatch_lines(
        ["compared with 2026-11-21T17:00:00, which was not on the same device: device NVIDIA H200 there, cpu here; driver 570.86 there, None here"]
    )
    assert "machine_info is different" not in result.stderr.str() + result.stdout.str()


def test_machine_info_of_other_benchmarks_stays_and_costs_no_torch(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\ndef test_one(benchmark):\n    benchmark(lambda: None)")
    pytester.makeconftest("import sys\ndef pytest_unconfigure():\n    print('torch' in sys.modules)")
    result = pytester.runpytest_subprocess(*FAST, "--benchmark-json=out.json", "-p", "no:hypothesispytest", "-s")
    result.assert_outcomes(passed=1)
    assert "accelerator" not in json.loads((pytester.path / "out.json").read_text(encoding="utf8"))["machine_info"]
    result.stdout.fnmatch_lines(["False"])


@pytest.mark.parametrize(
    ("given", "precisions"),
    [
        (("--precision=bf16-true,32-true,16-true",), {"32-true", "bf16-true", "16-true"}),
        (("--precision=32-true",), {"32-true", "bf16-mixed", "bf16-true", "16-mixed"}),
        ((), {"32-true", "bf16-mixed", "bf16-true", "16-mixed"}),
    ],
)
def test_precisions_are_those_of_the_run_unless_it_names_none(pytester: pytest.Pytester, given: tuple[str, ...], precisions: set[str]) -> None:
    pytester.makepyfile("import torch\ndef test_one(gpu_benchmark):\n    gpu_benchmark(torch.exp, torch.ones(4))")
    pytester.runpytest_inprocess(*FAST, "--benchmark-json=out.json", *given).assert_outcomes(passed=1)
    content = json.loads((pytester.path / "out.json").read_text(encoding="utf8"))
    assert {row["params"]["precision"] for row in content["benchmarks"]} == precisions


def test_error_is_that_under_the_op_policy_of_the_run(pytester: pytest.Pytester) -> None:
    """CUDA's autocast takes a softmax of bfloat16 in float32, a CPU's leaves it in bfloat16."""
    pytester.makepyfile(
        """
        import torch

        def test_one(gpu_benchmark):
            torch.manual_seed(0)
            weight = torch.randn(64, 64)
            found = gpu_benchmark(lambda x: (x @ weight).softmax(-1), torch.randn(64, 64), precisions=["bf16-mixed"])
            print(f"r is {found['bf16-mixed'].r}")
        """
    )
    told = [pytester.runpytest_inprocess(*FAST, "-rP", "-o", f"precision_policy={policy}").outlines for policy in ("cuda", "native")]
    cuda, native = ([line for line in lines if line.startswith("r is ")] for lines in told)
    assert cuda
    assert native
    assert cuda != native


def test_rounds_are_the_markers_before_the_command_lines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest, torch

        @pytest.mark.benchmark(min_rounds=4, group="mine")
        def test_one(gpu_benchmark):
            gpu_benchmark(torch.exp, torch.ones(4), precisions=["bf16-true"])
        """
    )
    result = pytester.runpytest_inprocess(*FAST)
    result.stdout.fnmatch_lines(["*benchmark 'mine': 2 tests*", "test_one[[]* 4"])


@pytest.mark.parametrize("options", [("--benchmark-disable",), ("-n1", "-p", "xdist")])
def test_where_benchmarks_are_off_the_test_runs_and_no_time_is_told(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    if "xdist" in options:
        pytest.importorskip("xdist")
    pytester.makepyfile(CODE)
    result = pytester.runpytest_inprocess(*FAST, *options, "-p", "no:hypothesispytest")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*speed, memory and error*")


@pytest.mark.parametrize(("option", "outcome"), [("--benchmark-skip", "skipped"), ("--benchmark-only", "passed")])
def test_it_counts_as_a_benchmark(pytester: pytest.Pytester, option: str, outcome: str) -> None:
    pytester.makepyfile(CODE)
    pytester.runpytest_inprocess(*FAST, option).assert_outcomes(**{outcome: 1})


def test_quiet_runs_say_nothing_of_their_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CODE)
    result = pytester.runpytest_inprocess(*FAST, "-q")
    result.stdout.no_fnmatch_line("*speed, memory and error*")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("gpu_benchmark(3, 4)", "gpu_benchmark: model is an int; pass a torch.nn.Module, or a function of tensors"),
        ("gpu_benchmark(torch.exp, torch.ones(4), precisions=['bf17'])", "gpu_benchmark: unknown precision 'bf17'; do you mean bf16? *"),
        ("gpu_benchmark(torch.exp, torch.ones(4), precisions='bf16')", "gpu_benchmark: precisions='bf16' is one word; pass a list of names*"),
        ("[gpu_benchmark(torch.exp, torch.ones(4), precisions=['16-true']) for _ in 'ab']", "gpu_benchmark, like benchmark, is for one call*"),
    ],
)
def test_what_cannot_be_is_one_line(pytester: pytest.Pytester, call: str, message: str) -> None:
    pytester.makepyfile(f"import torch\ndef test_one(gpu_benchmark):\n    {call}")
    result = pytester.runpytest_inprocess(*FAST)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([message])
    assert "Traceback" not in result.stdout.str()


def test_what_the_model_raises_is_shown_as_the_models(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def model(x):
            raise ZeroDivisionError("the model's own")

        def test_one(gpu_benchmark):
            import torch
            gpu_benchmark(model, torch.ones(4))
        """
    )
    result = pytester.runpytest_inprocess(*FAST)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([">       raise ZeroDivisionError*", "E       ZeroDivisionError: the model's own"])
    result.stdout.no_fnmatch_line("*observe/run.py*")


def test_without_pytest_benchmark_one_line_says_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(gpu_benchmark): pass\ndef test_two(): pass")
    result = pytester.runpytest_inprocess("-p", "no:benchmark")
    result.assert_outcomes(errors=1, passed=1)
    told = "gpu_benchmark needs pytest-benchmark, which is not loaded: pip install pytest-benchmark, or leave -p no:benchmark out"
    result.stdout.fnmatch_lines([told])


def test_junit_has_the_lines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CODE)
    pytester.runpytest_inprocess(*FAST, "--junitxml=out.xml")
    text = (pytester.path / "out.xml").read_text(encoding="utf8")
    assert 'name="precheck_benchmark" value="bf16-true: ' in text


BARE = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
PLAIN = "def test_it():\n    pass\n"


@pytest.mark.parametrize("options", [(), ("--help",), ("--benchmark-storage=file://a/b",)], ids=str)
@pytest.mark.usefixtures("forked_python")
def test_no_folder_is_left_of_a_run_that_saved_nothing(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    """pytest-benchmark makes one at every start, and may be here because precheck asked for it."""
    pytester.makepyfile(test_it=PLAIN)
    assert pytester.runpytest_subprocess(*BARE, *options).ret == 0
    assert not (pytester.path / ".benchmarks").exists()
    assert not (pytester.path / "a").exists()


@pytest.mark.usefixtures("forked_python")
def test_a_folder_that_was_there_stays_even_if_it_is_empty(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=PLAIN)
    (pytester.path / ".benchmarks").mkdir()
    pytester.runpytest_subprocess(*BARE)
    assert (pytester.path / ".benchmarks").is_dir()


@pytest.mark.usefixtures("forked_python")
def test_a_folder_in_which_runs_were_saved_stays(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_it(benchmark):\n    benchmark.pedantic(abs, (1,), rounds=2)\n")
    assert pytester.runpytest_subprocess(*BARE, "--benchmark-autosave", "--benchmark-storage=a/b").ret == 0
    assert list((pytester.path / "a" / "b").rglob("*.json"))
