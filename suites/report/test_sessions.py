"""Sessions: what is read back is what was written, and what cannot be read is told in one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from sessions import HOSTILE, binades, check, finding, hostile, of, op, row

from precheck.findings import Loss, Report
from precheck.report.session import SessionError, load, report_of, text


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text(hostile(name)), encoding="utf8")
    assert load(path) == hostile(name)


def test_a_report_is_read_back_whole() -> None:
    report = Report("16-mixed", boundaries=[row(r=float("inf")), row(r=2.5, shape=())], ops=[op(drift=float("nan"))], cure="code", facts={"a": 1})
    report.add([finding(ranks=(0, 3), measured=float("inf")), finding("nan", "note", measured=None)])
    back = report_of(json.loads(report.to_json()))
    assert (back.findings, back.boundaries, back.cure, back.facts) == (report.findings, report.boundaries, "code", {"a": 1})
    assert back.ops[0].drift != back.ops[0].drift
    assert back.to_json() == report.to_json()


def test_a_report_of_its_own_is_a_session_of_one_check(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    report = Report("bf16-mixed", findings=[finding()])
    path.write_text(report.to_json(), encoding="utf8")
    (only,) = load(path)["tests"]
    assert (only["nodeid"], only["precision"]) == ("mine", "bf16-mixed")
    assert report_of(only["report"]).findings == [finding()]


def test_fields_of_a_later_version_are_no_trouble(tmp_path: Path) -> None:
    content = of(check(finding(), rows=(row(),), ops=(op(),), losses=(Loss(1, 2.0, 1.0),), exponents=(binades(),)))
    report = content["tests"][0]["report"]
    for part in (content, content["tests"][0], report, report["findings"][0], report["boundaries"][0], report["ops"][0]):
        part["added"] = {"later": True}
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content), encoding="utf8")
    assert report_of(load(path)["tests"][0]["report"]).findings == [finding()]


def deep(levels: int) -> dict[str, Any]:
    return {"a": deep(levels - 1)} if levels else {}


def spoilt(spoil: Any) -> str:
    content = of(check(finding(), rows=(row(),), ops=(op(),), losses=(Loss(1, 2.0, 1.0),), exponents=(binades(),)))
    spoil(content, content["tests"][0], content["tests"][0]["report"])
    return json.dumps(content)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not JSON (Expecting value"),
        ("{", "is not JSON ("),
        ("[" * 100_000, "is not JSON ("),
        ("[]", "is JSON, but no report of precheck's; write one with pytest --drift-report=json:a.json"),
        ('{"tests": 3}', "is JSON, but no report of precheck's"),
        ('{"tests": []}', "is of schema None; precheck "),
        (spoilt(lambda whole, test, report: whole.update(schema=1)), "is of schema 1; precheck "),
        (spoilt(lambda whole, test, report: whole.update(tests=[3])), "is damaged: tests[0] is 3; accepted is an object"),
        (spoilt(lambda whole, test, report: test.update(tolerated=["nan"])), "tests[0].tolerated is a list; accepted is an object"),
        (spoilt(lambda whole, test, report: test.pop("report")), "tests[0] has to have either report or error"),
        (spoilt(lambda whole, test, report: test.update(report=3)), "tests[0].report is 3; accepted is an object"),
        (spoilt(lambda whole, test, report: report.update(facts=[])), "tests[0].report.facts is a list; accepted is an object"),
        (spoilt(lambda whole, test, report: report["facts"].update(shadowed=3)), "tests[0].report.facts has shadowed and no ops"),
        (spoilt(lambda whole, test, report: report["facts"].update(covered=1.5)), "covered is 1.5; accepted is a number at least 0 and at most 1"),
        (spoilt(lambda whole, test, report: report.update(facts=deep(100))), "is damaged: it is nested more than 64 levels deep"),
        (spoilt(lambda whole, test, report: report["facts"].update(a=float("nan"))), "is not JSON (NaN is no number there)"),
        (spoilt(lambda whole, test, report: report["facts"].update(a=float("-inf"))), "is not JSON (-Infinity is no number there)"),
        (spoilt(lambda whole, test, report: report["facts"].update(a="1e999")).replace('"1e999"', "1e999"), "is not JSON (1e999 is more than a "),
        (spoilt(lambda whole, test, report: report["boundaries"][0].update(allowed=0)), "allowed is 0; accepted is a number above 0"),
        (spoilt(lambda whole, test, report: report["boundaries"][0].update(allowed="nan")), 'allowed is "nan"; accepted is a number above 0'),
        (spoilt(lambda whole, test, report: report["boundaries"][0].update(r=10**400)), "boundaries[0].r is 1000000000000000000000000000000000"),
        (spoilt(lambda whole, test, report: report["boundaries"][0].update(shape=[-1])), "shape[0] is -1; accepted is a whole number at least 0"),
        (spoilt(lambda whole, test, report: report["ops"][0].update(calls=-3)), "ops[0].calls is -3; accepted is a whole number at least 0"),
        (spoilt(lambda whole, test, report: report["ops"][0].update(calls=2**53)), "ops[0].calls is 9007199254740992; accepted is a whole number"),
        (spoilt(lambda whole, test, report: report["ops"][0].update(calls=True)), "ops[0].calls is true; accepted is a whole number"),
        (spoilt(lambda whole, test, report: report["exponents"][0].pop("zeros")), "report.exponents[0] has no zeros; it has to have "),
        (spoilt(lambda whole, test, report: report["exponents"][0].update(least=10**6)), "exponents[0].least is 1000000; accepted is a whole number"),
        (spoilt(lambda whole, test, report: report.update(scaler={"history": [[1.0]]})), "scaler.history[0] has 1 items; accepted are 2"),
        (spoilt(lambda whole, test, report: test.update(tolerated={"nan": 3})), 'tests[0].tolerated["nan"] is 3; accepted is a text'),
        (spoilt(lambda whole, test, report: whole.update(root=True)), "is damaged: root is true; accepted is a text"),
        (spoilt(lambda whole, test, report: report["findings"][0].pop("rule")), "tests[0].report.findings[0] has no rule; it has to have "),
        (spoilt(lambda whole, test, report: report["findings"][0].update(rule="typo")), "is damaged: a finding's rule is 'typo', which precheck "),
        (spoilt(lambda whole, test, report: report["findings"][0].update(severity="dire")), 'findings[0].severity is "dire"; accepted is "error"'),
        (spoilt(lambda whole, test, report: report["findings"][0].update(message=3)), "findings[0].message is 3; accepted is a text"),
        (spoilt(lambda whole, test, report: report["boundaries"][0].update(r="big")), 'boundaries[0].r is "big"; accepted is a number'),
        (spoilt(lambda whole, test, report: report["ops"][0].update(drift=None)), "ops[0].drift is null; accepted is a number"),
        (spoilt(lambda whole, test, report: report.update(losses=3)), "report.losses is 3; accepted is a list"),
        (spoilt(lambda whole, test, report: report["losses"][0].update(low="big")), 'losses[0].low is "big"; accepted is a number'),
        (spoilt(lambda whole, test, report: report["losses"][0].pop("reference")), "report.losses[0] has no reference; it has to have "),
        (spoilt(lambda whole, test, report: report["exponents"][0].update(counts=[1, "x"])), 'exponents[0].counts[1] is "x"; accepted is'),
    ],
)
def test_what_cannot_be_read_is_told_in_one_sentence(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(content, encoding="utf8")
    with pytest.raises(SessionError, match=f"^{re.escape(str(path))}.*{re.escape(said)}") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_no_file_and_no_text_are_told_too(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match=r"a\.json cannot be read: No such file.*; write one with pytest --drift-report=json:a\.json"):
        load(tmp_path / "a.json")
    with pytest.raises(SessionError, match="cannot be read: Is a directory"):
        load(tmp_path)
    (tmp_path / "a.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SessionError, match=r"a.json is not JSON \('utf-8' codec"):
        load(tmp_path / "a.json")


def test_a_file_of_the_schema_before_is_read_and_has_neither_losses_nor_exponents(tmp_path: Path) -> None:
    content = json.loads(json.dumps(hostile("tame")))
    content["schema"] = 2
    for test in content["tests"]:
        if "report" in test:
            del test["report"]["losses"], test["report"]["exponents"]
    (tmp_path / "a.json").write_text(json.dumps(content), encoding="utf8")
    report = report_of(load(tmp_path / "a.json")["tests"][0]["report"])
    assert (report.losses, report.exponents) == ([], [])
    assert report.findings


def test_losses_and_exponents_come_back_as_they_were_written() -> None:
    told = report_of(hostile("tame")["tests"][0]["report"])
    assert told.losses[0] == Loss(1, 2.0, 1.0, 0.1, "tame")
    assert told.losses[1].floor is None
    assert told.exponents[0] == binades("tame")
    (odd,) = report_of(check(losses=(Loss(1, float("-inf"), float("nan")),))["report"]).losses
    assert odd.low == float("-inf")
    assert odd.reference != odd.reference


def test_what_it_says_to_type_overwrites_no_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    with pytest.raises(SessionError, match=r"train.py is not JSON .*; write one with pytest --drift-report=json:drift.json"):
        load(tmp_path / "train.py")
