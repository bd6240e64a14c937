"""Findings that the user allows: notes with the reason; what nothing needed; what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import precheck
from precheck.findings import Finding, Report
from precheck.goldens.lifecycle import refresh
from precheck.judge import allowances
from precheck.measurement import job_of

REASON = "the weights are rounded on purpose"


def trained(allow: Any) -> Report:
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16)

    def loss(out: torch.Tensor) -> torch.Tensor:
        return out.float().square().mean()

    def optimizer(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-6)

    return precheck.measure(model, torch.randn(32, 16), precision="bf16-true", loss=loss, optimizer=optimizer, allow=allow)


def test_an_allowed_error_is_a_note_with_its_reason() -> None:
    assert [finding.rule for finding in trained(None).errors] == ["lost-update"]
    report = trained({"lost-update": REASON})
    report.raise_for_errors()
    (note,) = [finding for finding in report.findings if finding.rule == "lost-update"]
    assert note.severity == "note"
    assert note.message.endswith(f"; allowed: {REASON}")
    assert report.summary().startswith("no errors, lost-update allowed under bf16-true:")


def test_a_watched_block_takes_allowances_too() -> None:
    with precheck.watch(allow={"integer-rounding": REASON}) as report:
        torch.arange(3000).to(torch.bfloat16).sin()
    assert [(finding.rule, finding.severity) for finding in report.findings] == [("integer-rounding", "note")]
    assert "integer-rounding allowed" in report.summary().splitlines()[0]


def test_what_nothing_needed_is_said() -> None:
    with precheck.watch(allow={"overflow": REASON}) as report:
        torch.ones(3)
    assert report.facts["not_needed"] == {"overflow": REASON}
    assert f"overflow is allowed ({REASON}), and was not found: leave it out of allow=" in report.summary()


def test_only_the_rules_that_are_named_are_allowed_and_the_gravest_stay_first() -> None:
    report = Report(findings=[Finding("overflow", "error", "first"), Finding("headroom", "warning", "near\nmore"), Finding("nan", "warning", "odd")])
    allowances.apply(report, {"overflow": "a", "headroom": "b"})
    said = [("nan", "warning", "odd"), ("overflow", "note", "first; allowed: a"), ("headroom", "note", "near; allowed: b\nmore")]
    assert [(finding.rule, finding.severity, finding.message) for finding in report.findings] == said
    assert report.facts["allowed"] == {"overflow": "a", "headroom": "b"}


@pytest.mark.parametrize(
    ("allow", "said"),
    [
        ({"lost-updates": "x"}, "there is no rule 'lost-updates'; do you mean lost-update?"),
        ({3: "x"}, "there is no rule 3; there are overflow, nan"),
        ({"nan": ""}, "nan is allowed without a reason"),
        ({"nan": None}, "nan is allowed without a reason"),
        (["nan"], "allow is a list; pass a dict of rules"),
    ],
)
def test_what_means_nothing_is_one_clear_error(allow: Any, said: str) -> None:
    with pytest.raises(precheck.InputError, match=said), precheck.watch(allow=allow):
        pass
    with pytest.raises(precheck.InputError, match=said):
        precheck.measure(torch.nn.Linear(2, 2), torch.ones(1, 2), allow=allow)
    with pytest.raises(precheck.InputError, match=said):
        precheck.check(torch.nn.Linear(2, 2), torch.ones(1, 2), golden="none.safetensors", allow=allow)


def test_a_check_that_judged_no_low_precision_says_nothing_of_what_that_needs(tmp_path: Path) -> None:
    model, x, path = torch.nn.Linear(8, 8), torch.ones(2, 8), tmp_path / "golden.safetensors"
    refresh(path, job_of(model, x), "all")
    for precision, inputs, idle in (("32-true", x, False), ("bf16-true", x + 1, False), ("bf16-true", x, True)):
        report = precheck.check(model, inputs, golden=path, precision=precision, allow={"overflow": REASON})
        assert ("not_needed" in report.facts) is idle, (precision, report.summary())
    assert f"({REASON}), and was not found under bf16-true: leave it out of allow=, unless another precision needs it" in report.summary()
