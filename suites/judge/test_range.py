"""Range, on records made by hand: overflow and NaN, headroom, gradients flushed to zero, and the names that findings carry."""

from __future__ import annotations

import math

import pytest
import torch
from hand import beside, normal, record, trace

from precheck.analysis import labels
from precheck.analysis.noise_floor import drift
from precheck.analysis.noise_floor.drift import ComparedTensor
from precheck.observe.records import Kind, Trace
from precheck.precisions import PRECISIONS

HALF, MIXED, BF16 = PRECISIONS["16-true"], PRECISIONS["16-mixed"], PRECISIONS["bf16-true"]
VALUES = normal(1000)


def with_elements(count: int, value: float) -> torch.Tensor:
    broken = VALUES.clone()
    broken[:count] = value
    return broken


def pair(name: str, low: torch.Tensor, reference: torch.Tensor = VALUES, *, kind: Kind = "output", dtype: str = "float16") -> ComparedTensor:
    low_trace, reference_trace = trace(record(kind, name, low, dtype=dtype)), trace(record(kind, name, reference))
    return drift.compare(low_trace, reference_trace, drift.Spreads({}, 2), HALF)[0]


def test_the_first_boundary_with_more_infinities_than_its_reference_is_blamed() -> None:
    rows = [pair("a", VALUES), pair("b.c", with_elements(3, math.inf)), pair("d", with_elements(1000, math.nan))]
    found = beside("overflow nan", HALF, rows)
    assert [(f.rule, f.severity, f.phase, f.module, f.measured) for f in found] == [("overflow", "error", "forward", "b.c", 3.0)]
    assert found[0].message.startswith("output of b.c: 3 of 1000 elements are Inf in float16 under 16-true in step 1, where the reference is finite")


def test_no_more_than_the_reference_has_is_nothing() -> None:
    assert beside("overflow nan", HALF, [pair("a", with_elements(3, -math.inf), with_elements(3, -math.inf))]) == []


@pytest.mark.parametrize(
    ("precision", "dtype", "reference", "rule"),
    [
        ("bf16-true", "bfloat16", 1.0, "nan"),  # bfloat16 has float32's range, so NaN was not made by overflow
        ("bf16-true", "bfloat16", 1e38, "overflow"),  # within a factor 16 of the largest number
        ("16-true", "float16", 1.0, "overflow"),  # inside the module something may well have passed 65504
    ],
)
def test_nan_is_overflow_where_range_may_have_run_out(precision: str, dtype: str, reference: float, rule: str) -> None:
    row = pair("a", with_elements(2, math.nan), VALUES.abs().clamp(max=1) * reference, dtype=dtype)
    assert [f.rule for f in beside("overflow nan", PRECISIONS[precision], [row])] == [rule]


def later(loss: torch.Tensor, output: torch.Tensor) -> tuple[Trace, Trace]:
    low = trace(record("output", "a", VALUES), record("output", "a", output, step=3, dtype="float16"))
    return low, trace(record("output", "a", VALUES), record("loss", "loss", loss, step=3))


def test_a_later_step_that_broke_is_found_if_the_references_did_not() -> None:
    found = beside("overflow", HALF, (), *later(torch.tensor(1.0), with_elements(5, math.inf)))
    assert [(f.rule, f.module, f.step) for f in found] == [("overflow", "a", 3)]
    assert beside("overflow", HALF, (), *later(torch.tensor(math.nan), with_elements(5, math.inf))) == []
    assert beside("overflow", HALF, (), *later(torch.tensor(1.0), VALUES)) == []


@pytest.mark.parametrize(("amax", "found"), [(65504 / 8.5, False), (65504 / 7.5, True), (65504.0, True)])
def test_headroom_below_three_bits_is_a_warning(amax: float, found: bool) -> None:
    low = trace(record("output", "small", VALUES, dtype="float16"), record("output", "big", torch.tensor([amax]), dtype="float16"))
    findings = beside("headroom", HALF, (), low)
    assert [(f.rule, f.severity, f.module) for f in findings] == ([("headroom", "warning", "big")] if found else [])
    if found:
        assert findings[0].measured == pytest.approx(math.log2(65504 / amax))


def test_headroom_is_a_matter_of_float16_outputs_alone() -> None:
    assert beside("headroom", MIXED, (), trace(record("output", "a", torch.tensor([6e4]), dtype="float32"))) == []
    assert beside("headroom", MIXED, (), trace(record("gradient", "a", torch.tensor([6e4]), dtype="float16"))) == []
    assert beside("headroom", BF16, (), trace(record("output", "a", torch.tensor([6e4]), dtype="bfloat16"))) == []


def flushed(scale: float, *, low_scale: float = 1.0, precision: str = "16-true", other: float = 0.0, activation: float = 0.0) -> list[str]:
    """Severities for a gradient of that root mean square under float16's rounding; `other` is another parameter's."""
    exact = normal(1000, scale=scale)
    kept = (exact * low_scale).half().float() / low_scale
    low = trace(record("parameter-gradient", "a.w", kept, dtype="float16"), scale=low_scale)
    reference = trace(record("parameter-gradient", "a.w", exact))
    if other:
        low.add(record("parameter-gradient", "b.w", normal(1000, scale=other)))
        reference.add(record("parameter-gradient", "b.w", normal(1000, scale=other)))
    if activation:
        low.add(record("gradient", "a", torch.tensor([activation])))
    used = PRECISIONS[precision]
    return [f.severity for f in beside("gradient-underflow", used, drift.compare(low, reference, drift.Spreads({}, 2), used), low)]


def test_a_gradient_below_float16s_last_step_is_gone() -> None:
    assert flushed(2.0**-27) == ["error"]
    assert flushed(2.0**-10) == []


def test_loss_scaling_brings_it_back() -> None:
    assert flushed(2.0**-27, low_scale=65536.0, precision="16-mixed") == []


def test_bfloat16_has_no_such_end() -> None:
    assert flushed(2.0**-27, precision="bf16-true") == []


def test_what_does_not_weigh_against_the_whole_gradient_is_a_note() -> None:
    assert flushed(2.0**-27, other=1.0) == ["note"]
    assert flushed(2.0**-27, other=2.0**-27) == ["error"]


def test_what_gradscaler_would_grow_to_is_a_note() -> None:
    """At loss scale 1 it is gone, but nothing overflows up to 2^16, to which the scale grows by itself."""
    assert flushed(2.0**-27, precision="16-mixed", activation=0.5) == ["note"]
    assert flushed(2.0**-27, precision="16-mixed", activation=60000.0) == ["error"]


def test_the_message_names_the_scale_that_would_keep_it() -> None:
    exact = normal(1000, scale=2.0**-27)
    low = trace(record("parameter-gradient", "a.w", exact.half().float(), dtype="float16"))
    rows = drift.compare(low, trace(record("parameter-gradient", "a.w", exact)), drift.Spreads({}, 2), HALF)
    finding = beside("gradient-underflow", HALF, rows, low)[0]
    scale = float(finding.message.rpartition("a loss scale of ")[2].split()[0])
    assert math.log2(scale) % 1 == 0
    kept = (exact * scale).half().float() / scale
    assert float((kept - exact).norm() / exact.norm()) < 0.02  # 5 bits above the last step: one in 32 sqrt(12), and as much again
    assert beside("gradient-underflow", HALF, rows, low, unstable={rows[0].record.key}) == []


def test_a_scale_that_collapsed() -> None:
    assert [f.rule for f in beside("scaler-collapse", MIXED, (), trace(collapsed=True))] == ["scaler-collapse"]
    assert beside("scaler-collapse", MIXED) == []


@pytest.mark.parametrize(
    ("kind", "name", "module", "label", "phase"),
    [
        ("output", "layers.0.attn", "layers.0.attn", "output of layers.0.attn", "forward"),
        ("output", "layers.0.attn#2[1]", "layers.0.attn", "output of layers.0.attn[1] in call 2", "forward"),
        ("output", "output", "", "the model's output", "forward"),
        ("gradient", "head", "head", "gradient of head", "backward"),
        ("parameter-gradient", "head.weight", "head", "gradient of head.weight", "backward"),
        ("parameter-gradient", "weight", "", "gradient of weight", "backward"),
        ("update", "a.b.weight", "a.b", "update of a.b.weight", "optimizer"),
        ("loss", "loss", "", "loss", "forward"),
        ("input", "x", "x", "input of x", "data"),
    ],
)
def test_names(kind: Kind, name: str, module: str, label: str, phase: str) -> None:
    assert (labels.module_of(name, kind), labels.label(kind, name), labels.phase_of(kind)) == (module, label, phase)


@pytest.mark.parametrize("name", ["[0]", "[logits]", "[a][1]", "output[]"])
def test_a_part_of_the_models_own_result_belongs_to_the_model(name: str) -> None:
    assert labels.module_of(name, "output") == ""
    assert labels.label("output", name) == "the model's output" + name.replace("output[]", "")
    assert labels.label("gradient", name) == f"gradient of {labels.label('output', name)}"
