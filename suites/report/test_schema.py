"""precheck/report/report.schema.json holds for what is really written, and names every field of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sessions import HOSTILE, hostile, of

import precheck
from precheck.findings import SCHEMA
from precheck.report.session import text

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")
SCHEMA_FILE = Path(precheck.__file__).parent / "report" / "report.schema.json"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf8"))
    jsonschema.Draft202012Validator.check_schema(content)
    return content


def strict(content: dict[str, Any]) -> dict[str, Any]:
    """The same schema, which lets no field through that it does not name; `facts` are free."""
    closed = copy.deepcopy(content)
    for part in [*closed["$defs"].values(), closed["$defs"]["report"]["properties"]["scaler"]]:
        if "properties" in part:
            part["additionalProperties"] = False
    return closed


def faults(schema: dict[str, Any], content: str) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(strict(schema)).iter_errors(json.loads(content))]


def measured() -> precheck.Report:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    optimizer = lambda parameters: torch.optim.AdamW(parameters, lr=1e-6)  # noqa: E731
    return precheck.measure(model, torch.randn(4, 8), precision="bf16-true", loss=lambda out: out.sum(), optimizer=optimizer, steps=3)


def scaled() -> precheck.Report:
    return precheck.measure(torch.nn.Linear(8, 8), torch.full((4, 8), 1e5), precision="16-mixed", loss=lambda out: out.sum())


def watched() -> precheck.Report:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    with precheck.watch() as report:
        for _ in range(3):
            model(torch.randn(4, 8).bfloat16()).sum().backward()
            optimizer.step()
    return report


def skipped() -> precheck.Report:
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=1)
    with precheck.watch(precision="16-mixed") as report:
        for _ in range(8):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(8, 16)).float().square().mean() * 2.0**8).backward()
            scaler.step(optimizer)
            scaler.update()
    return report


@pytest.mark.parametrize("made", [measured, scaled, watched, skipped])
def test_a_report_is_as_the_schema_says(schema: dict[str, Any], made: Any) -> None:
    report = made()
    assert report.findings or report.scaler, "there is something to look at"
    assert faults(schema, report.to_json()) == []


def test_updates_and_scalers_are_among_what_was_held_against_it() -> None:
    assert measured().updates
    assert watched().updates
    assert watched().ops
    assert scaled().scaler
    assert skipped().scaler["history"]
    assert measured().losses
    assert watched().losses
    assert watched().exponents
    assert measured().exponents, "its update was lost"


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_session_is_as_the_schema_says(schema: dict[str, Any], name: str) -> None:
    assert faults(schema, text(hostile(name))) == []
    assert json.loads(text(hostile(name))) == hostile(name)


def test_the_schema_is_of_the_version_that_is_written(schema: dict[str, Any]) -> None:
    assert [schema["$defs"][each]["properties"]["schema"]["const"] for each in ("session", "report")] == [SCHEMA, SCHEMA]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content.update(schema=1),
        lambda content: content["tests"][0].pop("nodeid"),
        lambda content: content["tests"][0].update(error="both"),
        lambda content: content["tests"][0]["report"]["findings"][0].update(severity="fatal"),
        lambda content: content["tests"][0]["report"]["boundaries"][0].update(r="1.0"),
        lambda content: content["tests"][0]["report"]["ops"][0].pop("drift"),
    ],
)
def test_what_is_no_report_is_refused(schema: dict[str, Any], spoil: Any) -> None:
    content = hostile("plain")
    assert jsonschema.Draft202012Validator(schema).is_valid(content)
    spoil(content)
    assert not jsonschema.Draft202012Validator(schema).is_valid(content)


def test_fields_may_be_added(schema: dict[str, Any]) -> None:
    assert jsonschema.Draft202012Validator(schema).is_valid({**of(), "added": 1})
