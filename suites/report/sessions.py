"""Sessions as a pytest run leaves them, made by hand, and names that a report must survive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from precheck.findings import Binades, Finding, Loss, OpRow, Report, Row
from precheck.report.session import Session, session

HOSTILE = {
    "quotes": "a\"b'c",
    "backticks": "`a` ``b``` `",
    "pipes": "a|b\\|c\\\\|d|",
    "script": "</script><script>alert(1)</script><img src=x onerror=alert(1)>",
    "newlines": "a\n\nb\r\n# c\n---\n| d |\n",
    "long": "x" * 10_000,
    "links": "[a](http://evil.example) https://evil.example www.evil.example @someone #1",
    "entities": "&lt;b&gt; &#x3c; $x$ ~~a~~ <!-- ",
    "turned": "a\u202eb\u2066c\u200bd\x00\x1b[31m\ud800",
    "fences": "```\n~~~~\n```text\n</details>\n",
    "empty": " ",
}


def finding(rule: str = "overflow", severity: Any = "error", **fields: Any) -> Finding:
    named = {"message": "output of wide: 3 of 8 elements are Inf", "module": "wide", "source": "models/gpt.py:88", "op": "aten.mul.Tensor"}
    return Finding(rule, severity, **{**named, "tensor": "wide", "measured": 3.0, "limit": 0.0, **fields})


def row(tensor: str = "wide", r: float = 1.0, **fields: Any) -> Row:
    plain = {"kind": "output", "step": 1, "shape": (4, 8), "dtype": "float16", "allowed": 3.0, "drift": r, "floor": 1.0, "relative": 0.01 * r}
    return Row(tensor=tensor, r=r, **{**plain, "nonfinite": 0, **fields})


def op(name: str = "aten.mul.Tensor", **fields: Any) -> OpRow:
    plain = {"phase": "forward", "module": "wide", "source": "models/gpt.py:88", "dtype": "float16", "calls": 1, "drift": 0.01, "inherited": 0.0}
    return OpRow(op=name, **{**plain, "nonfinite": 0, "zeros": 0, "flips": 0, "opaque": "", "first": 1, **fields})


def binades(tensor: str = "wide", kind: str = "output", **fields: Any) -> Binades:
    plain = {"step": 1, "dtype": "float16", "elements": 16, "least": -2, "counts": (3, 0, 13)}
    return Binades(tensor, kind, **{**plain, **fields})


TEST = "tests/test_gpt.py::test_it"


def check(
    *findings: Finding, rows: tuple[Row, ...] = (), ops: tuple[OpRow, ...] = (), losses: tuple[Loss, ...] = (),
    exponents: tuple[Binades, ...] = (), name: str = TEST, **told: Any,
) -> dict[str, Any]:  # fmt: skip
    """An entry of a session; `told` takes the place of what else it says."""
    report = Report(precision=told.get("precision", "16-mixed"), boundaries=list(rows), ops=list(ops))
    report.losses, report.exponents = list(losses), list(exponents)
    report.add(findings)
    report.cure = told.pop("cure", "")
    plain = {"nodeid": name, "line": 7, "precision": report.precision, "failed": bool(report.errors), "tolerated": {}}
    return {**plain, "report": json.loads(report.to_json()), **told}


def of(
    *checks: dict[str, Any], root: str = "/home/me/project", start: str = "/home/me/project", selftest: list[dict[str, Any]] | None = None
) -> Session:
    return session(checks, root=Path(root), start=Path(start), selftest=selftest)


def without_verdict(name: str = "tests/test_gpt.py::test_new", error: str = "no golden for this test") -> dict[str, Any]:
    return {"nodeid": name, "line": 3, "precision": "16-mixed", "failed": False, "tolerated": {}, "error": error}


def outcome(fault: str, status: str = "caught", **fields: Any) -> dict[str, Any]:
    """What became of one planted fault."""
    caught = {"size": 0.012, "limit": 0.003, "rule": "accumulated-drift"} if status == "caught" else {"size": None, "limit": None, "rule": ""}
    return {"fault": fault, "status": status, "text": f"{fault} of wide", "advice": "scale it" if status == "unnoticed" else "", **caught, **fields}


def planted(*outcomes: dict[str, Any], name: str = TEST, **told: Any) -> dict[str, Any]:
    """A check that was made again with faults planted."""
    return {"nodeid": name, "line": 7, "call": 1, "verb": "check_precision", "precision": "16-mixed", "outcomes": list(outcomes), **told}


def hostile(name: str) -> Session:
    """Everything that a user can name is named so."""
    message = f"output of {name} is odd\nsecond line {name}"
    named = finding(message=message, module=name, source=f"{name}.py:3", op=name, tensor=name, cause=f"by {name}")
    of_op = binades("", "op", op=name, phase="forward", module=name, source=f"{name}:1", dtype=name)
    told = check(
        named, finding("nan", "warning", module=name), rows=(row(name, 9.0),), ops=(op(name, module=name, source=f"{name}:1"),),
        losses=(Loss(1, 2.0, 1.0, 0.1, name), Loss(1, 2.0, 1.0), Loss(2, 2.0, 1.0)), exponents=(binades(name), of_op),
        name=f"tests/test_{name}.py::test_it[{name}]", cure=f"keep({name!r})  # {name}",
    )  # fmt: skip
    allowed = check(finding(), name=f"{name}::second", tolerated={"overflow": name})
    deaf = planted(
        outcome("drift", "unnoticed", text=name, advice=name), outcome("stale", "same", text=name), outcome("overflow", rule=f"{name}: {name}"),
        name=f"tests/test_{name}.py::test_it[{name}]",
    )  # fmt: skip
    return of(told, allowed, without_verdict(name, error=name), selftest=[deaf, planted(outcome("drift"), call=2)])
