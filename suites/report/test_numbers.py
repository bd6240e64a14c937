"""Numbers as people read them: no ten digits where three tell as much, no share that shows as 0.00%."""

from __future__ import annotations

import pytest

from precheck.findings import Report, Row
from precheck.report.terminal import summary
from precheck.words import of_norm, percents, short


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.3347, "33.47% of its norm"), (9.5, "950.00% of its norm"), (90.1737, "90.2 times its norm"), (2e-7, "2e-05% of its norm")],
)
def test_how_far_a_tensor_is_off(share: float, said: str) -> None:
    assert of_norm(share) == said


def test_no_share_but_zero_shows_as_zero() -> None:
    assert percents(0.0) == "0.00%"
    assert all(float(percents(10.0**-place).rstrip("%")) > 0 for place in range(12))


@pytest.mark.parametrize(("number", "said"), [(0.00341, "0.0034"), (12.3, "12"), (101.7, "102"), (98765.0, "98765"), (1.66e8, "1.7e+08")])
def test_a_number_of_a_table(number: float, said: str) -> None:
    assert short(number) == said


def test_a_huge_r_is_three_digits_and_a_power_of_ten() -> None:
    far = {"r": 41684524657.96, "allowed": 3.0, "drift": 1.0, "floor": 1.0, "relative": 1.66e8, "nonfinite": 0}
    row = Row("inp.weight", "parameter-gradient", 1, (64, 12), "float32", **far)  # type: ignore[arg-type]
    told = summary(Report(precision="bf16-mixed", boundaries=[row])).splitlines()
    assert any(line.split()[:3] == ["4.17e+10", "3.00", "1.7e+08"] for line in told), told
