"""Inputs as code: what it rebuilds is the same, bit for bit, and few lines say it where few elements matter."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precheck import InputError
from precheck.input_search.literals import code, elements
from precheck.strategies import masks, tensors, tokens

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
Pair = collections.namedtuple("Pair", "ids mask")


@dataclasses.dataclass
class Batch:
    ids: torch.Tensor
    scale: float


def rebuilt(value: Any) -> Any:
    names: dict[str, Any] = {}
    exec(code(value), names)
    return names["inputs"]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        facts = [(t.dtype, t.shape, t.requires_grad) for t in (one, other)]
        bits = [t.detach().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8) for t in (one, other)]
        return facts[0] == facts[1] and torch.equal(*bits)
    if isinstance(one, (tuple, list)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and same(vars(one), vars(other))
    return repr(one) == repr(other)


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        tensors(((1, 3), (1, 3), (1, 4), (1, 12)), dtype=FLOATS, layout="any", outliers=8.0),
        masks((2, 3, (1, 5)), empty_rows=True),
        masks(((1, 3), 4), dtype=torch.bfloat16),
        tokens(70_000, (3, (1, 40)), dtype=torch.int32),
    )
)
def test_whatever_the_strategies_draw_is_rebuilt(value: torch.Tensor) -> None:
    assert same(value, rebuilt(value))


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(3.0), torch.tensor(-0.0), torch.tensor(True), torch.zeros(0, 3), torch.tensor([float("nan"), -0.0, float("-inf")]),
        torch.randn(7, 7), torch.randn(40, 4).half(), torch.full((3, 2), 300.0), torch.ones(2, requires_grad=True), torch.tensor(1 + 2j),
        torch.zeros(2, dtype=torch.complex64)[::2], torch.tensor(2.5, dtype=torch.float8_e4m3fn),
        (torch.ones(3) > 0, None, 2.5, float("inf"), "s", [torch.eye(3)]), (torch.ones(1),),
        [], (),
        {"ids": torch.ones(2), "attention mask": torch.eye(2), "torch": torch.ones(1), "class": torch.ones(2), "inputs": torch.zeros(1)},
        Pair(torch.arange(3), None), (Batch(torch.arange(100), 0.1), 3),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_structures_and_odd_tensors_are_rebuilt(value: Any) -> None:
    assert same(value, rebuilt(value))


def test_few_elements_are_written_one_by_one_and_neighbours_as_one() -> None:
    value = torch.zeros(2, 4, 8)
    value[1, 2, 3], value[0, 1], value[0, 2, 5:7] = 0.1, 7.0, -2.0
    assert code(value).splitlines() == [
        "import torch", "", "inputs = torch.zeros(2, 4, 8)", "inputs[0, 1, :] = 7.0", "inputs[0, 2, 5:7] = -2.0", "inputs[1, 2, 3] = 0.1",
    ]  # fmt: skip


def test_numbers_are_as_short_as_their_dtype_allows() -> None:
    assert "0.1)" in code(torch.tensor([[0.1]]))  # not 0.10000000149
    assert "0.1, " in code(torch.tensor([[0.1]]).half())  # nor 0.0999755859375
    assert "0.3333" in code(torch.tensor([1 / 3]).half())
    assert "0.33333334" in code(torch.tensor([1 / 3]))


def test_lines_stay_short_whatever_the_size() -> None:
    assert max(map(len, code((torch.randn(60), torch.randn(5000))).splitlines())) < 120


def test_elements_are_those_that_are_not_what_their_tensor_is() -> None:
    mask = torch.ones(2, 3, dtype=torch.bool)
    mask[1, 2] = False
    ids = torch.zeros(2, 3, dtype=torch.int64)
    ids[0, 1] = 5
    assert list(elements({"ids": ids, "mask": mask})) == [("[ids]", (0, 1), 5), ("[mask]", (1, 2), False)]
    assert list(elements(torch.full((20,), 3.0))) == []  # one number says it all


def test_what_no_code_rebuilds_is_refused_by_its_name() -> None:
    class Local:
        pass

    with pytest.raises(InputError, match=r"input_1 is a .*Local, and no code is known"):
        code((torch.ones(1), Local()))
    with pytest.raises(InputError, match=r"tensor of torch.sparse_coo"):
        code(torch.ones(2).to_sparse())
