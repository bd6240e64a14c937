"""A session of unknown origin is refused in one sentence, or every form can be written of it; the schema file alone decides which."""

from __future__ import annotations

import copy
import inspect
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sessions import hostile

from precheck.__main__ import main
from precheck.findings import SCHEMA
from precheck.report import schema
from precheck.report.forms import FORMS
from precheck.report.session import DEEPEST, SessionError, load

JUNK: list[Any] = [
    None, True, -1, 0, 1.5, 1e308, -1.7e308, 5e-324, float("nan"), float("inf"), "", "</script><script>alert(1)</script>", "x" * 5000, [], {},
    [[]], {"a": 1}, "NaN", "nan", "inf", "-inf", 10**30, 10**308, 10**400, -(10**400), "\ud800", "\x1b[2J", "a.py:" + "9" * 5000, "a\0.py:3",
    ":", 2**53,
]  # fmt: skip
MUTATIONS = 200


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, held in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(held, (*path, key))


def mutated(content: dict[str, Any], drawn: random.Random) -> dict[str, Any]:
    content = copy.deepcopy(content)
    for _ in range(drawn.choice((1, 1, 2))):
        *above, last = drawn.choice(list(places(content)))
        held = content
        for key in above:
            held = held[key]
        if drawn.random() < 0.15 and isinstance(held, dict):
            del held[last]
        else:
            held[last] = drawn.choice(JUNK)
    return content


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """With all that a report can have."""
    content = json.loads(json.dumps(hostile("tame")))
    report = content["tests"][0]["report"]
    report["updates"] = [{"parameter": "w", "arrived": 0.5, "steps": 3, "rate": None, "dead_zone": [0.1, 0.2], "held": False, "moved": 3}]
    report["scaler"] = {
        "scale": 2.0,
        "skipped": 1,
        "collapsed": False,
        "safe": None,
        "tightest": "aten.mul at a.py:1",
        "history": [[2.0, True], [1.0, False]],
    }
    report["facts"] = {"ops": 3, "shadowed": 2, "covered": 0.5, "reference": "float32", "runs": [1, {"deep": [1]}]}
    quiet = copy.deepcopy(content["tests"][1])
    quiet["report"] |= {"boundaries": [], "findings": [], "facts": copy.deepcopy(report["facts"])}
    content["tests"].append(quiet)
    return content


def test_what_all_this_is_done_to_is_whole(whole: dict[str, Any]) -> None:
    assert schema.fault("session", whole) == ""


@pytest.mark.parametrize("seed", range(2))
def test_it_is_refused_in_one_sentence_or_every_form_can_be_written(seed: int, whole: dict[str, Any], tmp_path: Path) -> None:
    drawn, path, read = random.Random(seed), tmp_path / "a.json", 0
    for _ in range(MUTATIONS):
        path.write_text(json.dumps(mutated(whole, drawn)), encoding="utf8")
        try:
            session = load(path)
        except SessionError as error:
            assert str(error).startswith(f"{path} is ")  # noqa: PT017 (some mutations are no damage)
            assert len(str(error).splitlines()) == 1  # noqa: PT017
            continue
        read += 1
        for form in FORMS.values():
            if not form.missing:
                text = form.text(session) + (form.changes(whole, session) + form.changes(session, whole) if form.comparer else "")
                text.encode("utf8", "backslashreplace")
                assert "<script>alert" not in text.lower() or form.name != "html"
    assert MUTATIONS / 20 < read < MUTATIONS, "both happen"


@pytest.mark.parametrize("seed", range(2))
def test_the_published_validator_says_the_same(seed: int, whole: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")
    content = json.loads((Path(schema.__file__).parent / "report.schema.json").read_text(encoding="utf8"))
    drawn = random.Random(seed)
    published = jsonschema.Draft202012Validator({"$ref": "#/$defs/session", "$defs": content["$defs"]})
    verdicts = []
    for _ in range(MUTATIONS):
        spoilt = mutated(whole, drawn)
        if re.search(r"\b(NaN|-?Infinity)\b", re.sub(r'"[^"]*"', "", json.dumps(spoilt))):
            continue  # is no JSON: `load` has refused it by then
        told = schema.fault("session", spoilt)
        assert published.is_valid(spoilt) == (not told), told
        verdicts.append(not told)
    assert set(verdicts) == {True, False}


def test_no_keyword_of_the_file_is_passed_over() -> None:
    """A new one has to be carried out here too, or it would be asked of what others validate alone."""
    says, code = {"description", "title"}, inspect.getsource(schema)

    def strange(node: Any, named: bool) -> set[str]:
        """`named`: the keys are names that the schema gives, not its keywords."""
        if isinstance(node, list):
            return set().union(*(strange(each, False) for each in node)) if node else set()
        if not isinstance(node, dict):
            return set()
        own = set() if named else {key for key in node if f'"{key}"' not in code} - says
        return own.union(*(strange(held, key in ("properties", "dependentRequired") and not named) for key, held in node.items()))

    assert not strange(schema._definitions(), True)


def test_a_report_of_its_own_is_held_against_the_schema_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"schema": SCHEMA, "findings": [{}]}), encoding="utf8")
    with pytest.raises(SessionError, match="is damaged: report has no precision; it has to have schema, precision, findings"):
        load(path)


def test_what_nests_too_deeply_to_be_written_is_refused(whole: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    text = json.dumps({**whole, "added": 3})
    path.write_text(text.replace('"added": 3', f'"added": {"[" * (DEEPEST - 2)}{"]" * (DEEPEST - 2)}'), encoding="utf8")
    assert FORMS["json"].text(load(path))
    path.write_text(text.replace('"added": 3', f'"added": {"[" * 900}{"]" * 900}'), encoding="utf8")
    with pytest.raises(SessionError, match=r"nested|not JSON"):
        load(path)


@pytest.mark.parametrize("name", ["allowed", "zeros"])
def test_the_command_ends_with_2_on_a_damaged_file(name: str, whole: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1 would say that the later of two reports is worse."""
    report = whole["tests"][0]["report"]
    spoilt = copy.deepcopy(whole)
    if name == "allowed":
        spoilt["tests"][0]["report"]["boundaries"] = [{**report["boundaries"][0], "allowed": 0}]
    else:
        spoilt["tests"][0]["report"]["exponents"] = [{key: value for key, value in report["exponents"][0].items() if key != "zeros"}]
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(whole), encoding="utf8")
    bad.write_text(json.dumps(spoilt), encoding="utf8")
    for arguments in ([bad], [good, bad], [bad, good]):
        assert main(["report", *map(str, arguments)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
