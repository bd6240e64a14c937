"""What findings say: a first line that stands alone, numbers beyond their limits, a cure, and a summary that can be read."""

from __future__ import annotations

import dataclasses
import json
import linecache
import re

import pytest
import torch
from bugs import ALL
from bugs.bug import Bug
from test_bugs import first, seen

import precheck
from precheck.words import op_words


@dataclasses.dataclass(frozen=True)
class Words:
    """What the message on one bug has to say. `beyond` is "above" or "below": where its number lies, seen from the limit."""

    bug: str
    beyond: str
    pieces: tuple[str, ...]  # numbers with what they are numbers of; patterns, where a last bit may move the last digit


SAID = {
    "overflow": Words("box-area", "above", (r"120000 in the reference", "beyond the largest float16, 65504")),
    "nan": Words("empty-box", "above", ("NaN, where the reference gives 0", "for the same inputs")),
    "underflow": Words("narrow-variance", "below", ("1e-12 in the reference became zero", r"aten\.rsqrt\.default at .*:\d+ made Inf")),
    "vanished-constant": Words("unit-rows", "below", ("1e-12 is zero in float16", r"aten\.div\.Tensor at .*:\d+ made NaN")),
    "integer-rounding": Words("rotary-positions", "above", ("up to 999 in bfloat16", "only up to 256", "at least 494 changed")),
    "amplified-rounding": Words(
        "timestep-cast", "above", (r"its rounding \(0\.1\d%\) is amplified 1\d\d times by aten\.sin\.default at .*:\d+: \d%",)
    ),
    "cancellation": Words("one-pass-variance", "above", ("nearly equal numbers", r"off by \d{3}% of its norm", r"its terms by 0\.\d\d%")),
    "local-drift": Words("scattered-mean", "above", (r"the op itself is 7\d% off",)),
    "biased-rounding": Words("seed-of-each-launch", "above", ("32 calls round stochastically with the same random numbers", r"5\.\d times as large")),
    "absorption": Words("frozen-average", "below", (r"0% of what 3\d\d updates in a row should add arrived",)),
    "accumulated-drift": Words("rotated-state", "above", (r"[56]\d% of the elements have no correct digit",)),
    "decision-flip": Words("router", "above", (r"[23]\.\d% of 1500 rows", r"[23]\.\d% because bfloat16")),
    "missing-gradient": Words("validated-first", "below", (r"copy of 0\.weight", r"0\.weight gets none")),
    "gradient-underflow": Words("faint-loss", "above", (r"100% of the gradient of Linear\.weight", "without a loss scale")),
    "dtype-leak": Words("borrowed-eps", "above", (r"eps 0\.00781", r"differs by 23\d%")),
    "stale-cast": Words("one-autocast", "above", (r"a cast of 0\.weight that it made before", r"has changed \d+% of its elements since")),
    "unstable-reference": Words("chaotic-map", "above", ("float32 does not determine", r"\d\d% of the elements")),
}
ELSEWHERE = {"lost-update", "scaler-order", "scaler-collapse", "clipping", "wrong-scale"}  # in test_lost_updates, suites/scaler and suites/quantised
NAMED = {bug.name: bug for bug in ALL}
RULES = pytest.mark.parametrize("rule", SAID)


def bug_of(rule: str) -> Bug:
    return NAMED[SAID[rule].bug]


def test_every_rule_that_has_bugs_is_put_into_words() -> None:
    assert set(SAID) == {bug.rule for bug in ALL} - ELSEWHERE
    assert all(bug_of(rule).rule == rule for rule in SAID)


@RULES
def test_the_message_stands_alone_in_one_line(rule: str) -> None:
    """Op, line and numbers with their units; nothing but a summary prints the other fields of a finding."""
    finding = first(bug_of(rule))
    named = "|".join(re.escape(op_words(finding.op, dtype)) for dtype in ("bfloat16", "float16"))
    assert re.match(rf"({named}) at {re.escape(finding.source)}(, in the backward pass)?(, in b?float16 since \S+:\d+)?: ", finding.message)
    assert "\n" not in finding.message
    assert len(finding.message) < 400  # five lines of a terminal
    for piece in SAID[rule].pieces:
        assert re.search(piece, finding.message), finding.message


@RULES
def test_what_was_measured_lies_beyond_its_limit(rule: str) -> None:
    finding = first(bug_of(rule))
    assert finding.measured is not None
    assert finding.limit is not None
    distance = finding.measured - finding.limit
    assert distance >= 0 if SAID[rule].beyond == "above" else distance <= 0


@RULES
def test_a_cure_is_named(rule: str) -> None:
    assert len(first(bug_of(rule)).remedy) >= len("leave out this cast")


def test_the_message_on_an_op_of_the_backward_pass_says_so() -> None:
    """Its line has another op, so a reader would look for this one in vain."""
    assert ", in the backward pass: " in first(bug_of("gradient-underflow")).message


@RULES
def test_the_summary_leads_with_the_first_error_and_adds_its_cure(rule: str) -> None:
    bug = bug_of(rule)
    finding, lines = first(bug), seen(bug).summary().splitlines()
    if finding.severity == "error":
        assert lines[0] == f"{finding.rule}: {finding.message}"
        assert f"    cure: {finding.remedy}" in lines
    else:
        assert lines[0].startswith("no errors")
        assert f"{finding.severity}: {finding.rule}: {finding.message}" in lines
    assert (f"    in module {finding.module}" in lines) is bool(finding.module and finding.severity != "note")


@RULES
def test_a_failed_block_raises_its_summary(rule: str) -> None:
    report = seen(bug_of(rule))
    if report.errors:
        with pytest.raises(precheck.PrecisionFailure) as raised:
            report.raise_for_errors()
        assert str(raised.value) == report.summary()
    else:
        report.raise_for_errors()


@RULES
def test_json_says_the_same(rule: str) -> None:
    finding = first(bug_of(rule))
    told = json.loads(seen(bug_of(rule)).to_json())["findings"][0]
    assert (told["rule"], told["op"], told["source"], told["message"]) == (finding.rule, finding.op, finding.source, finding.message)


@pytest.mark.parametrize(
    ("precision", "said"),
    [(None, 'no errors: nothing to compare, none of 1 ops computed in a low format; watch(precision="32-true") follows float32 beside float64'),
     ("bf16-mixed", "no errors under bf16-mixed: nothing to compare, none of 1 ops computed in a low format"),
     ("32-true", "no errors under 32-true: 1 of 1 ops compared with float64")],
)  # fmt: skip
def test_a_block_without_low_formats_is_said_to_have_been_compared_with_nothing(precision: str | None, said: str) -> None:
    x = torch.ones(3)
    with precheck.watch(precision=precision) as report:
        x.add(0.5)
    assert report.summary().splitlines()[0] == said
    with precheck.watch(precision=precision) as report:
        pass
    assert report.summary().endswith(": nothing was watched, since no op of torch ran in this process")


CELL = "positions = torch.arange(300)\nangles = positions.to(torch.bfloat16).sin()\nangles.sum().item()\n"


@pytest.mark.parametrize("name", ["/tmp/ipykernel_4711/1234567.py", "<ipython-input-1-abc>", "<python-input-0>", "<stdin>"])
def test_code_that_is_typed_has_its_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell of a notebook has no file; Python keeps its lines for tracebacks. <stdin>'s it does not keep: there the number of the line is all."""
    if name != "<stdin>":
        monkeypatch.setitem(linecache.cache, name, (len(CELL), None, CELL.splitlines(keepends=True), name))
    code = compile(CELL, name, "exec")
    with precheck.watch() as report:
        exec(code, {"torch": torch})
    (finding,) = report.errors
    assert (finding.rule, finding.source) == ("integer-rounding", f"{name}:2")
    assert (f"    {name}:2  |  angles = positions.to(torch.bfloat16).sin()\n" in report.summary()) == (name != "<stdin>")


def test_generated_code_has_the_line_that_runs_it() -> None:
    code = compile(CELL, "<eval_with_key>.1", "exec")
    with precheck.watch() as report:
        exec(code, {"torch": torch})
    assert "test_messages.py" in report.errors[0].source
