"""What the page is given of exponents: the formats' ranges, and which histogram a row or a finding leads to."""

from __future__ import annotations

import math
from typing import Any

import pytest
from sessions import binades, check, finding, of, op, row
from test_html import Elements

from precheck.formats import BF16, E4M3FN, E5M2, FP16, Format
from precheck.report.html import page, ranges


def data(told: dict[str, Any]) -> Any:
    return Elements(page(of(told))).data("check-0")


@pytest.mark.parametrize("fmt", [FP16, BF16, E4M3FN, E5M2], ids=str)
def test_a_range_is_where_the_format_rounds_so(fmt: Format) -> None:
    (told,) = (each for each in ranges() if each["dtype"] == fmt.dtype_name)
    smallest = math.ldexp(1.0, told["subnormal"])
    assert fmt.round(smallest) == smallest
    assert fmt.round(smallest / 2) == 0
    assert fmt.round(1.01 * smallest / 2) == smallest, "the binade below it is not lost, but for its end"
    least = math.ldexp(1.0, told["normal"])
    assert fmt.round(least * (1 + fmt.epsilon)) == least * (1 + fmt.epsilon), "all digits"
    below = least / 2 * (1 + fmt.epsilon)
    assert fmt.round(below) != below, "one fewer"
    assert math.ldexp(1.0, told["largest"]) <= told["max"] == fmt.max < math.ldexp(1.0, told["largest"] + 1)


def test_a_row_has_the_histogram_of_its_tensor_kind_and_step() -> None:
    rows = row("wide"), row("wide", kind="gradient"), row("wide", step=2), row("narrow")
    told = data(check(rows=rows, exponents=(binades("wide", "gradient"), binades("narrow"), binades("wide"))))
    assert told["rows"]["binades"] == [2, 0, -1, 1]


MADE = binades("", "op", op="aten.mul.Tensor", phase="forward", module="wide", source="models/gpt.py:88")


@pytest.mark.parametrize(
    ("fields", "rows", "found"),
    [
        ({}, (row("wide"),), 1),
        ({}, (), 0),
        ({"tensor": "wide.weight"}, (), 2),
        ({"tensor": "wide.weight", "op": ""}, (row("wide.weight", kind="update"),), 2),
        ({"tensor": "elsewhere"}, (), 0),
        ({"tensor": "elsewhere", "op": "aten.exp.default"}, (), -1),
        ({"tensor": "elsewhere", "phase": "backward", "source": "models/gpt.py:89"}, (), -1),
    ],
)
def test_a_finding_leads_to_its_tensors_its_parameters_or_its_ops(fields: dict[str, Any], rows: Any, found: int) -> None:
    exponents = MADE, binades("wide"), binades("wide.weight", "parameter-gradient", step=3)
    told = data(check(finding(**fields), rows=rows, ops=(op(),), exponents=exponents))
    assert told["findings"][0]["at_binades"] == found


def test_counts_and_loss_scales_keep_all_their_digits() -> None:
    told = data(check(exponents=(binades(scale=65536.0, counts=(123456789,), zeros=98765),)))
    assert told["counts"] == [[123456789]]
    assert (told["exponents"]["scale"], told["exponents"]["zeros"]) == ([65536.0], [98765])


def test_a_report_of_the_schema_before_has_none() -> None:
    told = check(finding(), rows=(row(),))
    del told["report"]["exponents"], told["report"]["losses"]
    assert data(told)["counts"] == data(told)["losses"] == []
