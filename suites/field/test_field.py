"""The machinery of docs/field-report.md, on modules of its own: nothing of the package index is run, but blocks of the page where it is installed."""

from __future__ import annotations

import json
import re
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import evidence
import fieldcase
import results
import run
import training
from fieldcase import Calls, Case, Made, square
from releases import RELEASES
from trained import cast, differing, trained

PAGE = results.PAGE.read_text(encoding="utf8")
LINES = run.recorded(results.RESULTS)
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def healthy() -> Made:
    return Made(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)), (torch.randn(8, 8),), square)


def turned(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    seen = layer(x)
    positions = torch.arange(300, device=x.device).to(seen.dtype)  # rounded
    return seen * positions.sin()[:, None]


def positions() -> Made:
    return Made(Calls(turned, torch.nn.Linear(4, 4)), (torch.randn(300, 4),), square)


def refused() -> Made:
    return Made(Calls(lambda layer, x: layer(x.float()), torch.nn.Linear(4, 4)), (torch.randn(3, 4),), square)


def slow_weights() -> Made:
    return Made(torch.nn.LayerNorm(8), (torch.randn(4, 8),), square, lambda given: torch.optim.SGD(given, lr=1e-4))


def of(make: Any, *precisions: str) -> Case:
    return Case(make.__name__, "torch", "images", make, precisions or ("bf16-mixed",))


def test_a_healthy_case_has_a_line_for_each_run() -> None:
    found = list(run.case_lines(of(healthy, *fieldcase.PRECISIONS)))
    assert [(line["precision"], line["way"]) for line in found] == [(each, way) for each in fieldcase.PRECISIONS for way in run.WAYS]
    assert not any(line["errors"] or line.get("altered") or "crash" in line for line in found)


def test_an_error_has_its_line_and_no_folder_of_this_machine() -> None:
    watched, measured = run.case_lines(of(positions))
    for line in (watched, measured):
        (error,) = line["errors"]
        assert Path(error["source"]).name.startswith("test_field.py:")
        assert "integer-rounding" in error["rule"] + error["message"]  # `measure` shows what it does to the output, and names it as the cause
        assert str(Path.home()) not in json.dumps(line)
    assert "1 errors" in run.said(watched)


def test_code_that_fails_by_itself_is_no_crash_of_precheck() -> None:
    (line,) = run.case_lines(of(refused, "bf16-true"))
    assert "dtype" in line["unable"]
    assert "with precheck or without" in run.said(line)


def test_a_crash_of_precheck_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_measured", lambda case, precision: 1 / 0)
    _, line = run.case_lines(of(healthy))
    assert line["crash"] == "ZeroDivisionError: division by zero"
    assert "CRASH" in run.said(line)


def test_an_altered_result_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real = run._watched

    def altered(case: Case, precision: str) -> Any:
        report, left = real(case, precision)
        return report, left | {"loss 1": left["loss 1"] + 1}

    monkeypatch.setattr(run, "_watched", altered)
    watched, _ = run.case_lines(of(healthy))
    assert watched["altered"] == ["loss 1"]
    assert "ALTERED" in run.said(watched)


def test_bits_are_compared() -> None:
    one = trained(of(healthy), "16-mixed")
    assert not differing(one, trained(of(healthy), "16-mixed"))
    other = one | {"loss 0": -torch.zeros(()), "more": torch.ones(1)}
    assert differing(one | {"loss 0": torch.zeros(())}, other) == ["loss 0", "more"]


def test_inputs_are_cast_wherever_they_are() -> None:
    made = cast(({"a": [torch.ones(1), torch.ones(1).long()]}, 3), torch.bfloat16)
    assert made[0]["a"][0].dtype is torch.bfloat16
    assert made[0]["a"][1].dtype is torch.int64
    assert made[1] == 3


def test_a_package_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(run, "loaded", lambda: {"absent": Case("absent", "no-such-package-of-precheck", "images", healthy)})
    assert run.main([]) == 0
    assert capsys.readouterr().out == "absent: skipped, no-such-package-of-precheck is not installed\n"


def test_float64_sees_the_fault_and_the_line_in_float32_heals_it() -> None:
    number = next(place for place, text in enumerate(Path(__file__).read_text(encoding="utf8").splitlines(), 1) if text.endswith("# rounded"))
    columns = evidence.evidence(of(positions), "bf16-mixed", [f"test_field.py:{number}"], [])
    plain, low, kept, function = columns.values()
    assert plain["output 0"] < 1e-4 < 0.1 < low["output 0"]
    assert low["output 0"] > 10 * min(kept["output 0"], function["output 0"])


def test_float64_sees_what_does_not_arrive() -> None:
    (share, some) = evidence.arrived(of(slow_weights))["weight"]
    assert abs(share) < 0.1
    assert some < 0.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_random_numbers_are_the_same_in_every_precision_and_order_of_memory(dtype: torch.dtype) -> None:
    def drawn(kind: torch.dtype, *, turned: bool) -> torch.Tensor:
        torch.manual_seed(0)
        return (torch.empty(8, 32, dtype=kind).t() if turned else torch.empty(32, 8, dtype=kind)).uniform_()

    plain = drawn(torch.float32, turned=False)
    assert not torch.allclose(drawn(dtype, turned=True).float(), plain, atol=0.01)  # torch fills memory in its order
    with evidence.SameNumbers():
        found = drawn(dtype, turned=True)
    assert found.dtype is dtype
    torch.testing.assert_close(found.float(), plain, atol=0.01, rtol=0)


def test_what_is_written_in_place_arrives_where_a_function_is_kept_in_float32() -> None:
    buffer, weight = torch.zeros(32, dtype=torch.bfloat16), torch.ones(32, dtype=torch.bfloat16)
    with evidence.Kept(lambda frame: True):
        buffer.data.normal_()
        weight[:4] = torch.zeros(4)
        assert (buffer * weight).dtype is torch.float32
    assert buffer.all()
    assert weight.sum() == 28


def test_all_cases_load_without_their_packages() -> None:
    cases = fieldcase.loaded()
    assert len({case.package for case in cases.values()}) >= 60
    assert {case.domain for case in cases.values()} == set(results.DOMAINS)


def test_the_page_is_what_the_results_say() -> None:
    assert results.made(PAGE, LINES) == PAGE, "stale: type python suites/field/results.py"


def test_every_error_is_judged_with_its_evidence() -> None:
    judged = results.verdicts()
    for line, error in results.errors(LINES):
        one = judged[results.key(line, error)]
        assert one["is"] in results.KINDS
        assert len(one["evidence"]) > 20


def test_what_the_report_promises() -> None:
    found = results.totals(LINES, results.verdicts())
    assert found["code bases"] >= 60
    assert found["errors that are true"] >= 0.95 * found["errors"]
    assert found["altered results"] == found["crashes of precheck"] == 0


def test_results_are_of_cases_that_there_are() -> None:
    cases = fieldcase.loaded()
    assert {line["case"]: line["package"] for line in LINES} == {name: cases[name].package for name in dict.fromkeys(line["case"] for line in LINES)}


def imported(block: str) -> list[str]:
    """The packages that a block needs beside torch."""
    return [name for name in re.findall(r"^(?:from|import) (\w+)", block, re.MULTILINE) if name not in sys.stdlib_module_names | {"torch"}]


@pytest.mark.parametrize("block", [text for kind, text in BLOCKS if kind == "python"], ids=lambda text: imported(text)[0])
def test_a_block_of_field_report_runs_where_its_package_is(block: str) -> None:
    for name in imported(block):
        pytest.importorskip(name)
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(block, "block", "exec"), {"__name__": "block"})


def test_the_commands_of_the_page_are_taken() -> None:
    """With packages missing, too: what they name is there."""
    cases = fieldcase.loaded()
    commands = [shlex.split(line) for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
    calls = [words[words.index("python") + 1 :] for words in commands if "python" in words]
    assert len(calls) == 3
    for script, *words in calls:
        assert (results.FOLDER.parents[1] / script).is_file()
        asked = [word for word in words if not re.search(r"[:.]|^(bf)?16-|^--", word)]
        assert asked
        known = RELEASES if script.endswith("releases.py") else cases
        assert all(any(word in name for name in known) for word in asked)


def test_float64_may_start_from_what_bfloat16_holds() -> None:
    """A network whose weights are off by their storage alone: nothing of it is the code's."""
    case = of(healthy, "bf16-true")
    (stored, _), (given, low) = (list(evidence.evidence(case, "bf16-true", [], [], given=given).values()) for given in (False, True))
    assert stored["output 0"] < 1e-5
    assert given["output 0"] < 1e-5
    assert low["output 0"] < list(evidence.evidence(case, "bf16-true", [], []).values())[1]["output 0"]


@pytest.mark.parametrize(("name", "line"), [("llama", ""), ("xlnet", ""), ("bloom", "modeling_bloom.py")])
def test_a_release_that_has_mended_its_bug_passes(name: str, line: str) -> None:
    """transformers computes positions in float32 today; Bloom still adds distances to scores in bfloat16."""
    pytest.importorskip("transformers")
    errors = RELEASES[name].report().errors
    assert bool(errors) is bool(line), [error.message for error in errors]
    assert not errors or line in errors[0].source


def test_the_record_of_trainings_is_of_those_that_there_are() -> None:
    """Without their packages, too."""
    known = training.loaded()
    lines = run.recorded(results.FOLDER / "trainings_as_found.jsonl")
    assert len(known) >= 40
    assert {(line["training"], line["precision"]) for line in lines} == {(name, each) for name, one in known.items() for each in one.precisions}
    assert f"{len(known)} trainings with {sum(len(one.precisions) for one in known.values())} configurations" in PAGE
