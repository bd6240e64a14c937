"""A block that an exception ended: what it asked last, and what torch would not store or mix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scenario import finds, passes

LOW = torch.bfloat16


def tiny() -> torch.Tensor:
    """One number that float16 flushes to zero."""
    return torch.full((1,), 1e-9)


def compared() -> None:
    small = tiny().half()  # fault
    if not small.gt(0):
        raise ValueError


def returned() -> torch.Tensor:
    return tiny().half().gt(0)


def compared_alike() -> None:
    if not tiny().half().gt(1):
        raise ValueError


def compared_long_ago() -> torch.Tensor:
    asked = tiny().half().gt(0)
    last = torch.ones(3).half() * 2
    if not asked:
        raise ValueError
    return last


def test_a_comparison_that_came_out_otherwise_before_an_exception_is_told() -> None:
    finds(compared, "underflow", raises=ValueError, says="1e-09 in the reference became zero here; aten.gt.Scalar at ")
    finds(compared, "underflow", raises=ValueError, says="came out otherwise, and the code raised ValueError")


def test_else_a_question_is_no_fault() -> None:
    passes(returned)
    passes(compared_alike, raises=ValueError)
    passes(compared_long_ago, raises=ValueError)


def divided() -> float:
    return 1.0 / tiny().half().item()  # fault


def looked_up() -> Any:
    return {}[tiny().half().item()]


def test_a_number_that_python_read_counts_where_python_refuses_numbers() -> None:
    finds(divided, "underflow", raises=ZeroDivisionError, says="and the code raised ZeroDivisionError")
    passes(looked_up, raises=KeyError)


def filled() -> torch.Tensor:
    return torch.zeros(4).half().masked_fill_(torch.arange(4) > 2, -1e20)  # fault


def test_a_number_that_torch_would_not_store_is_told() -> None:
    finding = finds(filled, "overflow", raises=RuntimeError, says="-1e+20 is beyond the largest float16, 65504, and torch raises")
    assert (finding.measured, finding.limit) == (1e20, 65504.0)


@pytest.mark.parametrize(("fill", "dtype"), [(-65504.0, torch.float16), (float("-inf"), torch.float16), (-1e20, LOW)])
def test_what_fits_was_refused_for_another_reason(fill: float, dtype: torch.dtype) -> None:
    def refused() -> torch.Tensor:
        return torch.zeros(4, dtype=dtype).masked_fill_(torch.arange(5) > 2, fill)

    passes(refused, raises=RuntimeError)


def made_good() -> torch.Tensor:
    scores = torch.zeros(4).half()
    try:
        scores.masked_fill_(torch.arange(4) > 2, -1e20)
    except RuntimeError:
        scores = scores * 2
    raise RuntimeError(scores.shape)


def test_what_the_code_made_good_after_a_refusal_is_nobodys_fault() -> None:
    passes(made_good, raises=RuntimeError)


def linear(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, torch.ones(3, 4, dtype=LOW), torch.ones(3, dtype=LOW))


def promoted() -> torch.Tensor:
    low = torch.ones(2, 4).to(LOW) / 3
    wide = low + torch.ones(2, 4)  # fault
    return linear(wide * 2)


def cast() -> torch.Tensor:
    low = torch.ones(2, 4).to(LOW) / 3
    wide = low.float()  # fault
    return linear(wide)


def wide_from_the_start() -> torch.Tensor:
    return torch.nn.functional.linear(torch.ones(2, 4), torch.ones(3, 4, dtype=LOW), torch.ones(3, dtype=LOW))  # fault


def of_other_shapes() -> torch.Tensor:
    return linear(torch.ones(2, 5, dtype=LOW))


def of_wide_formats() -> torch.Tensor:
    return torch.ones(3, 4) @ torch.ones(4, 3).double()


def test_formats_that_torch_will_not_mix_are_traced_to_where_one_was_left() -> None:
    """Through what is wide already, to the promotion or the cast; else to where they met."""
    finds(promoted, "dtype-leak", raises=RuntimeError, says="torch refuses to combine float32 and bfloat16 at aten.addmm.default")
    finds(promoted, "dtype-leak", raises=RuntimeError, says="the float32 operand is made float32 here, from low-precision numbers")
    mixed = finds(cast, "dtype-leak", raises=RuntimeError, says="from low-precision numbers")
    assert mixed.remedy == "cast one of the two: the float32 operand to bfloat16, or the other to float32"
    finds(wide_from_the_start, "dtype-leak", raises=RuntimeError, says="an input of the block, or computed from one")


def attended(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query, query, value)


def turned_by_a_wide_table() -> torch.Tensor:
    value = torch.ones(1, 3, 4).to(LOW) / 3
    wide = value * torch.ones(3, 4)  # fault
    return attended(wide * 2, value * 2)


def widened_by_a_cast() -> torch.Tensor:
    """What is made of the cast is the argument; the cast is where float32 begins."""
    value = torch.ones(1, 3, 4).to(LOW) / 3
    kept = value.float() + 1  # fault
    return attended(kept, value)


def given_in_two_formats() -> torch.Tensor:
    return attended(torch.ones(1, 3, 4), torch.ones(1, 3, 4, dtype=LOW) / 3)


def widened_for_another_use() -> torch.Tensor:
    """A number in float32 is written down; what the call refuses is a shape, and its message names no format."""
    value = torch.ones(1, 3, 4).to(LOW) / 3
    value.float().sum()
    return attended(value, torch.ones(2, 5, 7, dtype=LOW))


def test_formats_that_torch_compares_before_it_runs_an_op_are_traced_as_well() -> None:
    """Attention looks at its arguments first, so that no op is seen that refuses."""
    mixed = finds(turned_by_a_wide_table, "dtype-leak", raises=RuntimeError, says="combine float32 and bfloat16 in the call that raised")
    assert mixed.op == "aten.mul.Tensor"
    assert mixed.remedy == "cast one of the two: the float32 operand to bfloat16, or the other to float32"
    finds(widened_by_a_cast, "dtype-leak", raises=RuntimeError, says="made float32 here")


@pytest.mark.parametrize("program", [given_in_two_formats, widened_for_another_use])
def test_a_call_that_raises_for_what_it_was_given_is_let_pass(program: Any) -> None:
    passes(program, raises=RuntimeError)


@pytest.mark.parametrize("program", [of_other_shapes, of_wide_formats])
def test_other_refusals_are_let_pass(program: Any) -> None:
    passes(program, raises=RuntimeError, wide=program is of_wide_formats)
