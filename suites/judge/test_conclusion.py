"""One verdict of what boundaries and ops show: its order, and what noise has explained."""

from __future__ import annotations

import inspect
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from graph import Graph, given

import precheck
from precheck import formats
from precheck.analysis.rounding.misroundings import Misrounded
from precheck.findings import Finding, Row
from precheck.judge import conclusion
from precheck.judge.watched_runs import RunJudge
from precheck.observe.records import Trace
from precheck.observe.shadow.op_notes import Flips
from precheck.observe.shadow.operations import Observation
from precheck.observe.shadow.places.source import Function
from precheck.rules.rule import Candidate

U = formats.of_dtype("bfloat16").unit_roundoff
ROUNDED = 0.42 * U
WIDE = {"dtype": "float32", "roundoff": U, "low": False, "kept_low": False}


def concluded(graph: Graph, boundaries: list[Finding], trace: Trace | None = None, rows: list[Row] | None = None) -> list[Finding]:
    return conclusion.concluded(boundaries, graph.observation, RunJudge().candidates(graph.observation), trace or Trace(), rows or [])


def moments() -> Graph:
    """A mean that is stored low on line 1, a variance that cancels on line 3, and on line 4 a distance from that mean."""
    graph = Graph()
    mean = graph.op("mean.dim", given("float32"), makes={"drift": ROUNDED})
    squares = graph.op("mul.Tensor", given("float32"), makes={"drift": ROUNDED})
    graph.op("sub.Tensor", squares, given(), makes={"drift": 40 * ROUNDED, "alive": True})
    wide = graph.op("_to_copy.default", mean, makes=WIDE | {"kept_low": True, "drift": ROUNDED})
    graph.op("sub.Tensor", wide, given("float32"), makes=WIDE | {"drift": 60 * ROUNDED, "alive": True})
    return graph


def test_errors_stand_in_the_order_in_which_ops_show_them() -> None:
    """The mean was stored first, and does no harm before something is subtracted from it."""
    assert [finding.source for finding in concluded(moments(), [])] == ["model.py:3", "model.py:1"]


def converted(asked: bool) -> Graph:
    """A cast on line 1, by a conversion of all inputs or by the user, that a sine on line 2 amplifies."""
    graph = Graph()
    cast = graph.op("_to_copy.default", given("float32"), makes={"drift": ROUNDED}, converts=asked)
    graph.op("sin.default", cast, makes={"drift": 40 * ROUNDED, "dead": 0.1, "alive": True})
    return graph


def row(r: float) -> Row:
    return Row("waves()", "returned", 1, (64,), "bfloat16", r, 3.0, 0.0, 0.0, 0.0, 0)


def returned(first: int) -> SimpleNamespace:
    """What a record says of a function of nine lines."""
    return SimpleNamespace(place=("model.py", first, first + 8), shape=(64,))


@pytest.mark.parametrize(("asked", "r", "severity"), [(True, 1.0, "note"), (True, 4.0, "error"), (False, 1.0, "error")])
def test_what_noise_explains_in_a_function_is_a_note_where_another_errs(asked: bool, r: float, severity: str) -> None:
    other = Finding("accumulated-drift", "error", "what other() returns: off", phase="forward", step=1, tensor="other()")
    records: dict[str, Any] = {"returned:waves()@1": returned(1), "returned:other()@1": returned(20)}
    found = concluded(converted(asked), [other], Trace(records=records), [row(r)])
    assert [finding.severity for finding in found if finding.rule == "amplified-rounding"] == [severity]


@pytest.mark.parametrize(("asked", "line"), [(True, "model.py:3"), (False, "model.py:1")])
def test_an_error_beyond_the_floor_comes_of_a_rounding_that_noise_lacks(asked: bool, line: str) -> None:
    """Noise runs have what a conversion of the inputs rounds, so the floor has it as well. A later cast of the user's is beyond the floor."""
    graph = converted(asked)
    cast = graph.op("_to_copy.default", given("float32"), makes={"drift": ROUNDED})
    graph.op("sin.default", cast, makes={"drift": 40 * ROUNDED, "dead": 0.1, "alive": True})
    gradient = Finding("accumulated-drift", "error", "gradient of weight: off", phase="forward", step=1, tensor="weight")
    found = concluded(graph, [gradient])
    assert next(finding.source for finding in found if finding.rule == "accumulated-drift") == line


def amplified_in(phase: str, module: str = "") -> Graph:
    """What a module of torch's own rounds on line 1, and a sine on line 2 amplifies."""
    graph = Graph()
    made = graph.op("mm.default", given("float32"), makes={"drift": ROUNDED}, plain=True)
    graph.op("sin.default", made, makes={"drift": 40 * ROUNDED, "dead": 0.1, "alive": True}, phase=phase, module=module)
    return graph


@pytest.mark.parametrize(("own", "severity"), [(0.7, "note"), (0.71, "error")])
def test_noise_does_not_explain_what_a_function_makes_itself_of_what_torch_has_rounded(own: float, severity: str) -> None:
    """A difference takes away what neighbours share of an input's error, but not a rounding in the function, which is another one in each."""
    graph, drift = Graph(), 40 * ROUNDED
    scores = graph.op("mm.default", given("float32"), makes={"drift": ROUNDED}, plain=True)
    stored = graph.op("mul.Tensor", scores, given("float32"), makes={"drift": 1.4 * ROUNDED, "stored": ROUNDED}, call=1)
    graph.op("sin.default", stored, makes={"drift": drift, "call_error": own * drift, "dead": 0.1, "alive": True}, call=1)
    (found,) = concluded(graph, [])
    assert (found.rule, found.source, found.severity) == ("amplified-rounding", "model.py:2", severity)


def compared(kind: str, tensor: str, r: float) -> Row:
    return Row(tensor, kind, 1, (64,), "bfloat16", r, 3.0, 0.0, 0.0, 0.0, 0)


@pytest.mark.parametrize(("phase", "module", "rows", "severity"), [
    ("backward", "", [compared("gradient", "enc", 1.0)], "note"),
    ("backward", "", [compared("gradient", "enc", 4.0)], "error"),
    ("forward", "enc", [compared("output", "enc", 1.0), compared("output", "enc#2", 2.0)], "note"),
    ("forward", "enc", [compared("output", "enc", 1.0), compared("output", "enc#2", 4.0)], "error"),
    ("forward", "enc", [compared("output", "enc", 1.0), compared("returned", "waves()", 4.0)], "error"),
    ("forward", "", [compared("gradient", "enc", 1.0)], "error"),
])  # fmt: skip
def test_what_noise_explains_in_a_module_or_in_all_gradients_is_a_note_too(phase: str, module: str, rows: list[Row], severity: str) -> None:
    """The function `waves` has both lines: where it is wrong itself, that its module is right shows only that little of it arrives there."""
    other = Finding("accumulated-drift", "error", "what other() returns: off", phase="forward", step=1, tensor="other()")
    records: dict[str, Any] = {"returned:waves()@1": returned(1), "returned:other()@1": returned(20)}
    found = concluded(amplified_in(phase, module), [other], Trace(records=records), rows)
    assert [finding.severity for finding in found if finding.rule == "amplified-rounding"] == [severity]


def rounded_twice(*, plain: bool, first: str = "bfloat16") -> Graph:
    """What line 1 rounds to the format `first` is rounded to bfloat16 by a sum on line 2, and a softmax on line 3 amplifies both."""
    graph, before = Graph(), 0.42 * formats.of_dtype(first).unit_roundoff
    made = graph.op("mm.default", given("float32"), makes={"drift": before, "dtype": first}, plain=plain)
    added = graph.op("add.Tensor", made, given("float32"), makes={"drift": math.hypot(before, ROUNDED)})
    graph.op("_softmax.default", added, makes={"drift": 40 * ROUNDED, "dead": 0.1, "alive": True})
    return graph


@pytest.mark.parametrize(("plain", "first", "severity"), [(True, "bfloat16", "note"), (True, "float16", "error"), (False, "bfloat16", "error")])
def test_a_second_rounding_is_no_error_where_noise_runs_have_as_much_before_it(plain: bool, first: str, severity: str) -> None:
    """Without it at least 0.7 of the error is left. It is an error if it is the larger one, or if the user's code made the first one too."""
    found = [finding for finding in concluded(rounded_twice(plain=plain, first=first), []) if finding.rule == "amplified-rounding"]
    assert {finding.severity for finding in found} == {severity}, found


def deciding() -> Graph:
    """Low distances that line 2 makes of what line 1 has made, and line 3 chooses the nearest. A sine of an input, on line 5, is beside the point."""
    graph = Graph()
    first = graph.op("mul.Tensor", given("float32"), makes=WIDE | {"drift": 0.0}, module="codes")
    distances = graph.op("add.Tensor", first, given("float32"), makes={"drift": ROUNDED}, module="codes")
    graph.op("argmin.default", distances, makes={"dtype": "int64"}, module="codes", flips=Flips(40, 400, 0, 0.03, 1.0))
    graph.last.outputs = ()
    cast = graph.op("_to_copy.default", given("float32"), makes={"drift": ROUNDED}, converts="given")
    graph.op("sin.default", cast, makes={"drift": 40 * ROUNDED, "dead": 0.1, "alive": True})
    return graph


def test_a_comparison_is_traced_too_and_a_difference_is_named_before_its_terms() -> None:
    """A comparison of tensors has no choices of rows. Two low lines of one function made what it compares, and the second is a difference."""
    graph = Graph()
    graph.observation.functions = {f"model.py:{line}": Function("model.py:1", "ranges") for line in (1, 2)}
    squares = graph.op("mul.Tensor", given("float32"), makes={"drift": ROUNDED})
    apart = graph.op("sub.Tensor", squares, given("float32"), makes={"drift": 10 * ROUNDED, "norm": 0.1})
    graph.op("lt.Scalar", apart, makes={"dtype": "bool"})
    graph.last.outputs = ()
    flips = Finding("decision-flip", "error", "aten.lt: 40 of 400", op="aten.lt", phase="forward", step=1)
    [first] = [finding for finding in concluded(graph, [flips]) if finding.rule == "decision-flip"]
    assert first.source == "model.py:2"
    assert "the numbers that aten.lt.Scalar at model.py:3 compares" in first.cause


def test_a_decision_that_flips_too_often_is_named_where_the_numbers_that_decide_got_their_error() -> None:
    """However small that is beside them. A conversion of the inputs, which noise runs have as well, is not the cause."""
    flips = Finding("decision-flip", "error", "aten.argmin in codes: 40 of 400", op="aten.argmin", phase="forward", module="codes", step=1)
    found = concluded(deciding(), [flips])
    [first] = [finding for finding in found if finding.rule == "decision-flip"]
    assert first.source == "model.py:2"
    assert "the numbers that aten.argmin.default at model.py:3 compares are off by 0.16% of their norm" in first.cause


def losing(name: str, *, rounding: str = "mul.Tensor", drift: float = 10 * U) -> Graph:
    """A function whose low op on line 2 makes an error of ten unit roundoffs of its own, of what `rounding` on line 1 has rounded once."""
    graph = Graph()
    graph.observation.functions = {f"model.py:{line}": Function("model.py:1", "waves") for line in (1, 2)}
    scaled = graph.op(rounding, given(), given(), makes={"drift": ROUNDED, "call_error": ROUNDED}, call=1)
    graph.op(name, scaled, given(), makes={"drift": drift, "call_error": 10 * U, "norm": 8 * ROUNDED / (10 * U), "alive": True}, call=1)
    return graph


@pytest.mark.parametrize(("rounding", "name", "drift", "r", "found_by"), [
    ("mul.Tensor", "sub.Tensor", 10 * U, 4.5, ("cancellation", "model.py:2")),
    ("mul.Tensor", "exp.default", 10 * U, 4.5, ("amplified-rounding", "model.py:1")),
    ("mm.default", "exp.default", 10 * U, 4.5, None),
    ("mul.Tensor", "sub.Tensor", 15 * U, 4.5, None),
    ("mul.Tensor", "sub.Tensor", 10.9 * U, 3.1, None),
    ("mul.Tensor", "sub.Tensor", 10 * U, 2.9, None),
])  # fmt: skip
def test_an_error_that_a_function_makes_beyond_its_limit_is_no_warning(
    rounding: str, name: str, drift: float, r: float, found_by: tuple[str, str] | None
) -> None:
    """It is a warning if a product makes it, if the function was given half of it, and if its own error alone is within the limit."""
    warning = Finding(
        "accumulated-drift", "warning", "what waves() returns: off", phase="forward", step=1, tensor="waves()", measured=r, limit=3.0
    )
    record = SimpleNamespace(place=("model.py", 1, 9), shape=(64,), kind="returned")
    found = concluded(losing(name, rounding=rounding, drift=drift), [warning], Trace(records={"returned:waves()@1": record}))  # type: ignore[dict-item]
    [first] = [finding for finding in found if finding.rule == "accumulated-drift"]
    assert (first.severity, first.cause_rule, first.source) == (("error", *found_by) if found_by else ("warning", "", ""))


def waves(positions: torch.Tensor) -> torch.Tensor:
    return torch.sin(positions)


class Embedding(torch.nn.Module):
    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return waves(positions.to(torch.bfloat16))  # fault


class WideEmbedding(torch.nn.Module):
    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return waves(positions).to(torch.bfloat16)


def test_a_rounding_before_a_function_that_only_the_function_shows_is_told_once() -> None:
    """The boundary's error and the op's are one: the cast is to be mended, and another function shows it."""
    positions = 300 * torch.rand(64, 40, generator=torch.Generator().manual_seed(0))
    (found,) = precheck.measure(Embedding(), positions, precision="bf16-mixed").findings
    lines, first = inspect.getsourcelines(Embedding)
    fault = first + next(place for place, line in enumerate(lines) if line.rstrip().endswith("# fault"))
    assert (found.rule, found.cause_rule) == ("accumulated-drift", "amplified-rounding"), found.message
    assert found.source.endswith(f"test_conclusion.py:{fault}"), found.source
    assert not precheck.measure(WideEmbedding(), positions, precision="bf16-mixed").errors


@pytest.mark.parametrize(("derived", "step", "severity"), [(True, 2, "warning"), (False, 2, "error"), (True, 1, "error")])
def test_what_autograd_does_to_a_step_is_in_the_noise_of_the_next(derived: bool, step: int, severity: str) -> None:
    """A gradient on line 1 is off by a few roundings. The weight that it moves takes that to line 2. The user's own backward op stays an error."""
    graph = Graph()
    gradient = graph.op("sum.dim_IntList", given("float32"), makes={"drift": 2 * ROUNDED}, phase="backward", derived=derived)
    graph.op("sin.default", gradient, makes={"drift": 80 * ROUNDED, "dead": 0.1, "alive": True}, step=step)
    (finding,) = [each for each in graph.found() if each.rule == "amplified-rounding"]
    assert (finding.severity, finding.source) == (severity, "model.py:1")


@pytest.mark.parametrize(("error", "told"), [("model.py:1", ["integer-rounding"]), ("model.py:2", ["amplified-rounding", "integer-rounding"])])
def test_a_note_that_a_rounding_does_no_harm_is_left_out_beside_an_error_on_its_line(error: str, told: list[str]) -> None:
    graph, judge = Graph(), RunJudge()
    value = graph.op("mul.Tensor", given())
    graph.op("mul.Tensor", given(), source=error)
    (rounds, wrong) = graph.observation.operations
    fact = Misrounded(rule="amplified-rounding", operation=rounds, measured=1, limit=0, severity="note", how="amplified", shown=rounds, value=value)
    harmless = Candidate("amplified-rounding", rounds, "does no harm", 1.0, 0.0, "note", fact=fact)
    judge.earliest = {("one",): harmless, ("other",): Candidate("integer-rounding", wrong, "changed", 1.0, 0.0)}
    assert sorted(each.rule for each in judge.candidates(Observation())) == told
