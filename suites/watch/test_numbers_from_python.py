"""Numbers that enter a run from Python are rounded to its format as those of a cast are."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import precheck
from precheck.findings import Report
from precheck.observe.shadow.probes import python_numbers

LOW, HALF, WIDE = torch.bfloat16, torch.float16, torch.float32


def seen(code: Callable[[], Any]) -> Report:
    with precheck.watch() as report:
        result = code()
    del result
    return report


def bias_correction(dtype: torch.dtype) -> torch.Tensor:
    """Adam's, at the third step."""
    return 1 - torch.as_tensor(0.999, dtype=dtype) ** 3


def test_a_decay_that_is_one_is_blamed_where_it_becomes_one() -> None:
    finding = seen(lambda: bias_correction(LOW)).errors[0]
    assert finding.rule == "vanished-constant"
    assert "0.999 is 1 in bfloat16" in finding.message
    assert "aten.rsub.Scalar" in finding.message
    assert not seen(lambda: bias_correction(WIDE)).findings
    assert not seen(lambda: 1 - torch.as_tensor(0.9, dtype=LOW) ** 3).findings, "a decay that the format holds"


def guarded(eps: float) -> torch.Tensor:
    weights = torch.zeros(4, dtype=HALF)
    weights[1] = 1.0
    weights[weights == 0] = eps
    return weights.log()


def test_an_eps_that_is_filled_in_and_vanishes() -> None:
    weights = torch.tensor([0.0, 1.0], dtype=HALF)
    finding = seen(lambda: weights.masked_fill(weights == 0, 1e-8).log()).errors[0]
    assert finding.rule == "vanished-constant"
    assert "1e-08 is zero in float16 and guards nothing" in finding.message


def test_an_eps_that_is_put_into_a_tensor_and_vanishes() -> None:
    finding = seen(lambda: guarded(1e-8)).errors[0]
    assert finding.rule == "vanished-constant"
    assert "1e-08 is zero in float16 and guards nothing" in finding.message
    assert not seen(lambda: guarded(1e-4)).findings


MAKERS = {
    "tensor": lambda ids: torch.tensor(ids, dtype=LOW),
    "as_tensor": lambda ids: torch.as_tensor(ids, dtype=LOW),
    "asarray": lambda ids: torch.asarray(ids, dtype=LOW),
    "new_tensor": lambda ids: torch.zeros(1, dtype=LOW).new_tensor(ids),
    "by keyword": lambda ids: torch.tensor(data=ids, dtype=LOW),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_ids_that_a_list_holds_and_the_format_does_not(make: Callable[[list[int]], torch.Tensor]) -> None:
    finding = seen(lambda: make([1000, 1001, 999]).long()).errors[0]
    assert finding.rule == "integer-rounding"
    assert "whole numbers up to 1001 in bfloat16" in finding.message
    assert not seen(lambda: make([100, 101, 99]).long()).findings


def kept_in_a_list(dtype: torch.dtype, read: Callable[[torch.Tensor], list[float]]) -> torch.Tensor:
    new = torch.log_softmax(torch.arange(256.0).sin().reshape(32, 8), -1)[:, 3]
    old = torch.tensor(read(new + 1e-4), dtype=dtype)
    return (new - old).exp()


@pytest.mark.parametrize("read", [lambda told: told.tolist(), lambda told: [each.item() for each in told], lambda told: list(map(float, told))])
def test_what_was_computed_and_comes_back_low_is_the_codes_own_rounding(read: Any) -> None:
    """A difference in float32 of what is merely given low has the data's own digits; these numbers had all of theirs."""
    report = seen(lambda: kept_in_a_list(LOW, read))
    assert report.errors[0].rule == "amplified-rounding"
    assert "its rounding error grows at aten.sub.Tensor" in report.errors[0].message
    assert not seen(lambda: kept_in_a_list(WIDE, read)).findings


def test_data_from_a_file_are_as_they_are() -> None:
    data = [[5 + 0.001 * ((7 * row + 3 * column) % 50) for column in range(8)] for row in range(64)]

    def centred() -> torch.Tensor:
        batch = torch.tensor(data, dtype=LOW).float()
        return batch - batch.mean(0)

    assert not seen(centred).findings


def test_what_precheck_reads_of_a_tensor_itself_is_nothing_that_the_user_was_given() -> None:
    with precheck.watch():
        (torch.randn(64, dtype=LOW).float() * 3).exp().sum().to(LOW)
        assert not python_numbers._thread.known
        given = torch.tensor(0.3).item()
        assert list(python_numbers._thread.known) == [given]


def test_whoever_is_not_watched_has_torchs_own_functions_back() -> None:
    before = torch.tensor, torch.as_tensor, torch.asarray
    with precheck.watch(), precheck.watch():
        assert torch.tensor == before[0] == torch.tensor
        assert {before[0]: 1}[torch.tensor] == 1, "tables that name the function find it"
        assert pickle.loads(pickle.dumps(torch.tensor)) is torch.tensor
        assert torch.Tensor.new_tensor is not torch._C.TensorBase.new_tensor
    assert (torch.tensor, torch.as_tensor, torch.asarray) == before
    assert all(type(each) is type(len) for each in (torch.tensor, torch.as_tensor, torch.asarray))
    assert not {"new_tensor", "__setitem__", "item", "tolist", "__float__"} & set(vars(torch.Tensor))


def added(x: torch.Tensor) -> torch.Tensor:
    return x + torch.tensor([0.1, 0.2], dtype=torch.bfloat16)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_torchscript_compiles_what_calls_them() -> None:
    with precheck.watch():
        result = torch.jit.script(added)(torch.ones(2, dtype=LOW))
    assert torch.equal(result, added(torch.ones(2, dtype=LOW)))
