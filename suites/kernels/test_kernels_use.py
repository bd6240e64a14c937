"""The judge of kernels as it is used: on the command line, in a test, from strategies; and the page that says so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import precheck
from precheck import strategies
from precheck.__main__ import main

PAGE = (Path(precheck.__file__).parent.parent / "docs" / "kernels.md").read_text(encoding="utf8")
CODE = """
import torch

inputs = torch.linspace(-2, 2, 24).view(4, 6)


def reference(x):
    return torch.relu(x)


def good(x):
    return torch.where(x <= 0, torch.zeros_like(x), x)


def bad(x):
    return torch.where(x <= 0.5, torch.zeros_like(x), x)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kernels_of_mine.py"
    path.write_text(CODE, encoding="utf8")
    monkeypatch.syspath_prepend(tmp_path)
    return path


def test_the_command_says_what_is_wrong_and_writes_a_test(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "test_found.py"
    assert main(["kernel", f"{file}:bad", f"{file}:reference", "--trials", "20", "--save", str(saved)]) == 1
    said = capsys.readouterr().out
    assert "kernel-contract: output" in said
    assert "times as fast" not in said
    assert "not looked at: another stream: only CUDA has streams here, and the example lies on cpu" in said
    assert "not looked at: speed: it is measured where it is asked for: speed=True, or --speed" in said
    assert "inputs = torch." in said
    written = saved.read_text(encoding="utf8")
    assert "from kernels_of_mine import bad as candidate" in written
    compile(written, str(saved), "exec")


def test_the_command_gives_json_and_passes_what_is_right(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", f"{file}:good", f"{file}:reference", "--trials", "20", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["facts"]["verdict"] == "rounding"
    assert set(report["facts"]["not_looked_at"]) == {"another stream", "speed"}


def test_speed_stands_beside_the_error_where_it_is_asked_for(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", f"{file}:good", f"{file}:reference", "--trials", "20", "--speed"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "times as fast" in line)
    assert row.endswith(" times as fast, with at most 0 of the error that correct implementations reach (forward and backward, cpu)")
    assert main(["kernel", f"{file}:good", f"{file}:reference", "--trials", "20", "--speed", "--gradients", "no", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["facts"]
    speed = facts["speed"]
    assert (speed["device"], speed["passes"], speed["r"]) == ("cpu", "forward", 0)
    assert min(speed[name] for name in ("candidate_ms", "reference_ms", "times_as_fast", "rounds")) > 0
    assert speed["candidate_bytes"] > speed["reference_bytes"] == 24 * 4
    assert set(facts["not_looked_at"]) == {"another stream"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing", "nothing"], "'nothing' names nothing; write module:function"),
        (["nowhere.py:f", "nowhere.py:g"], "nowhere.py is no file"),
        (["no_such_module:f", "no_such_module:g"], "no_such_module cannot be imported"),
        (["{file}:worse", "{file}:reference"], "has no 'worse'; it has"),
        (["{file}:good", "{file}:reference", "--precision", "half"], "means two things"),
        (["math:sin", "math:cos"], "no inputs: define inputs"),
    ],
)
def test_what_the_command_cannot_do_is_said_in_one_line(file: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", *(each.replace("{file}", str(file)) for each in arguments)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.usefixtures("everything_imported")
def test_the_fixture_fails_a_test_of_a_wrong_kernel(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CODE + "\n\ndef test_good(check_kernel):\n    check_kernel(good, reference, inputs, trials=20)\n\n\n"
                        "def test_timed(check_kernel):\n    report = check_kernel(good, reference, inputs, trials=20, speed=True)\n"
                        "    assert report.facts['speed']['times_as_fast'] > 0\n\n\n"
                        "def test_bad(check_kernel):\n    check_kernel(bad, reference, inputs, trials=20)\n")  # fmt: skip
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*kernel-contract*output*"])


@pytest.mark.usefixtures("everything_imported")
def test_the_number_of_trials_is_an_argument_of_the_fixture_and_of_the_command(pytester: pytest.Pytester, capsys: Any) -> None:
    path = pytester.makepyfile(
        CODE + "\n\ndef test_it(check_kernel):\n    assert check_kernel(good, reference, inputs, trials=4).facts['trials'] == 4\n\n\n"
        "def test_of_none(check_kernel):\n    check_kernel(good, reference, inputs, trials=0)\n"
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*trials=0; pass how many trials to make at most, as in trials=100"])
    capsys.readouterr()
    assert main(["kernel", f"{path}:good", f"{path}:reference", "--trials", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["trials"] == 4
    assert main(["kernel", f"{path}:good", f"{path}:reference", "--trials", "0"]) == 2
    assert "trials=0; pass how many trials to make at most" in capsys.readouterr().err


def test_strategies_give_examples() -> None:
    drawn = (strategies.tensors((4, 6)), strategies.tensors((6,)))
    report = precheck.compare_kernels(lambda x, y: (x.double() + y.double()).float(), torch.add, drawn, trials=20)
    assert not report.errors, report.summary()
    assert report.facts["trials"] >= 5 * 3


def test_sizes_that_are_named_apart_vary_apart() -> None:
    """Of a square matrix only one dimension is wrong."""
    seen: list[tuple[int, ...]] = []

    def spy(x: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(x.shape))
        return x.sum(-1)

    precheck.compare_kernels(spy, lambda x: x.sum(-1), torch.randn(6, 6), trials=85)
    assert all(a == b for a, b in seen)
    seen.clear()
    precheck.compare_kernels(spy, lambda x: x.sum(-1), torch.randn(6, 6), sizes="rows columns", trials=130)
    assert any(a != b for a, b in seen)


def test_a_precision_casts_inputs_or_runs_both_under_autocast() -> None:
    dtypes: list[torch.dtype] = []

    def spy(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        product = x @ w
        dtypes.append(product.dtype)
        return product

    x, w = torch.randn(4, 6), torch.randn(6, 3)
    assert not precheck.compare_kernels(spy, torch.matmul, (x, w), precision="bf16-true", trials=80).errors
    assert not precheck.compare_kernels(spy, torch.matmul, (x, w), precision="bf16-mixed", trials=80).errors
    wider = [each for each in dtypes if each is not torch.bfloat16]
    assert wider == [torch.float32, torch.float64]  # one call each, to see whether the kernel keeps the format of the call before
    assert len(dtypes) > 100


def test_the_first_block_of_the_page_runs_and_its_rules_are_rules() -> None:
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], names)
    assert names["report"].verdict == "rounding"
    told = re.findall(r"^\| \[`(kernel-[a-z]+)`\]", PAGE, re.MULTILINE)
    assert set(told) == {name for name in precheck.RULES if name.startswith("kernel-")}
