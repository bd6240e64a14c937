"""Numbers as people read them: no ten digits where three tell as much, no share that shows as 0.00%."""

from __future__ import annotations

import pytest

from precheck.analysis.labels import label
from precheck.findings import Report, Row
from precheck.report.terminal import op_table, summary
from precheck.words import in_package, of_norm, op_words, percents, portion, short, tensor_name


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.3347, "33% of its norm"), (9.5, "950% of its norm"), (90.1737, "90 times its norm"), (2e-7, "0.00002% of its norm"),
     (float("inf"), "its whole size, since the reference is zero")],
)
def test_how_far_a_tensor_is_off(share: float, said: str) -> None:
    assert of_norm(share) == said


def test_no_share_but_zero_shows_as_zero() -> None:
    assert percents(0.0) == "0%"
    assert all(float(percents(10.0**-place).rstrip("%")) > 0 for place in range(12))


@pytest.mark.parametrize(("number", "said"), [(0.00341, "0.0034"), (12.3, "12"), (101.7, "102"), (98765.0, "98765"), (1.66e8, "1.7e+08")])
def test_a_number_of_a_table(number: float, said: str) -> None:
    assert short(number) == said


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.0, "0%"), (3.4e-6, "0.00034%"), (0.0021, "0.21%"), (0.284, "28%"), (1.04, "104%"), (90.17, "90 times"), (1.7e8, "1.7e+08 times"),
     (float("inf"), "inf")],
)  # fmt: skip
def test_a_share_of_a_table_has_its_unit(share: float, said: str) -> None:
    assert portion(share) == said


def test_a_cast_is_called_one_and_other_ops_keep_their_names() -> None:
    assert op_words("aten._to_copy.default", "bfloat16") == "cast to bfloat16 (aten._to_copy)"
    assert op_words("aten._to_copy.default") == "cast (aten._to_copy)"
    assert op_words("aten.mm.default", "bfloat16") == "aten.mm.default"


def test_the_gradient_of_the_models_output_has_a_name() -> None:
    assert tensor_name("gradient", "output") == "gradient of the output"
    assert tensor_name("gradient", "head", 3) == "gradient of head, step 3"
    assert tensor_name("output", "output") == "output"


def test_a_module_whose_name_is_a_number_is_called_one() -> None:
    assert tensor_name("output", "0.2.1") == "output of module 0.2.1"
    assert tensor_name("gradient", "0[hidden]") == "gradient of module 0[hidden]"
    assert tensor_name("output", "3#2", 2) == "output of module 3 in call 2, step 2"
    assert tensor_name("returned", "perturbed()#2[0]") == "what perturbed()[0] returns in call 2"
    assert tensor_name("parameter-gradient", "0.weight") == "gradient of 0.weight"
    assert label("output", "0.2.1") == "output of module 0.2.1"


def test_an_r_of_thousands_has_no_exponent() -> None:
    far = {"r": 1341.4, "allowed": 1528.0, "drift": 1.0, "floor": 1.0, "relative": 0.02, "nonfinite": 0}
    row = Row("0.weight", "parameter-gradient", 1, (64, 12), "float32", **far)  # type: ignore[arg-type]
    assert "r 1340 of 1530 allowed" in summary(Report(precision="bf16-mixed", boundaries=[row]))


def test_a_huge_r_is_three_digits_and_a_power_of_ten() -> None:
    far = {"r": 41684524657.96, "allowed": 3.0, "drift": 1.0, "floor": 1.0, "relative": 1.66e8, "nonfinite": 0}
    row = Row("inp.weight", "parameter-gradient", 1, (64, 12), "float32", **far)  # type: ignore[arg-type]
    told = summary(Report(precision="bf16-mixed", boundaries=[row])).splitlines()
    assert any(line.split()[:3] == ["4.17e+10", "3.00", "1.7e+08"] for line in told), told


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/env/lib/python3.11/site-packages/keras/src/backend/torch/numpy.py:2177", "keras/src/backend/torch/numpy.py:2177"),
        ("models/gpt.py:9", "models/gpt.py:9"),
        ("", ""),
    ],
)
def test_a_line_of_a_library_has_its_import_path_in_the_table_of_ops(line: str, said: str) -> None:
    assert in_package(line) == said
    row = {"nonfinite": 0, "added": 0.1, "drift": 0.2, "inherited": 0.1, "calls": 1, "phase": "forward", "dtype": "float16", "op": "aten.pow"}
    table = op_table([("test", {"precision": "16-mixed", "ops": [{**row, "source": line, "module": "scale"}], "calls": 1})], 3)
    assert said in table[2]
    assert "site-packages" not in "".join(table)
