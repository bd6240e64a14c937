"""Kernels that add many elements into one: told when they do it in the low format, in place and not, sparse and as counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import precheck

LOW, WIDE = torch.bfloat16, torch.float32
SUM = (1 + 1000**0.5 / 2) * 2.0**-8
"""What a sum of 1000 terms in bfloat16 may err that is rounded right each time. Sums that stagnate at 256 of 500 err by half: a build
of torch below this limit adds in float32, and there is nothing to tell."""


def values(dtype: torch.dtype) -> torch.Tensor:
    return (torch.round(64 * torch.rand(4000, generator=torch.Generator().manual_seed(0))) / 64).to(dtype)  # bfloat16 holds them


PLACES = torch.arange(4000) % 4


def sparse(dtype: torch.dtype) -> torch.Tensor:
    rows = torch.sparse_coo_tensor(torch.stack([PLACES, torch.arange(4000)]), values(dtype), (4, 4000), check_invariants=True)
    return torch.sparse.mm(rows, torch.ones(4000, 2, dtype=dtype))


KERNELS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "put_": lambda dtype: torch.zeros(4, dtype=dtype).put_(PLACES, values(dtype), accumulate=True),
    "index_put_": lambda dtype: torch.zeros(4, dtype=dtype).index_put_((PLACES,), values(dtype), accumulate=True),
    "index_put": lambda dtype: torch.zeros(4, dtype=dtype).index_put((PLACES,), values(dtype), accumulate=True),
    "index_add_": lambda dtype: torch.zeros(4, dtype=dtype).index_add_(0, PLACES, values(dtype)),
    "scatter_add_": lambda dtype: torch.zeros(4, dtype=dtype).scatter_add_(0, PLACES, values(dtype)),
    "histc": lambda dtype: torch.histc(values(dtype), 4, 0, 1),
    "_sparse_addmm": sparse,
}
NAMED = pytest.mark.parametrize("name", KERNELS)


@NAMED
def test_sums_in_the_low_format_are_local_drift(name: str) -> None:
    with precheck.watch() as report:
        low = KERNELS[name](LOW)
    wide = KERNELS[name](WIDE)
    if float((low.float() - wide).norm() / wide.norm()) < SUM:
        assert report.errors == [], report.summary()
        return
    assert [finding.rule for finding in report.errors] == ["local-drift"], report.summary()
    assert report.errors[0].op.startswith(f"aten.{name}.")


@NAMED
def test_sums_in_float32_are_left_in_peace(name: str) -> None:
    with precheck.watch() as report:
        kept = KERNELS[name](WIDE).to(LOW)
    assert kept.dtype is LOW
    assert report.findings == [], report.summary()


def test_writing_in_place_without_adding_up_is_no_sum() -> None:
    """A cache: each place is written once, and what was there before is not asked for again."""
    with precheck.watch() as report:
        cache = torch.zeros(16, 4).to(LOW)
        for step in range(16):
            cache.index_put_((torch.tensor([step]),), torch.full((1, 4), 1 / 3).to(LOW))
        total = cache.float().sum()
    assert float(total) > 0
    assert report.findings == [], report.summary()


def test_what_was_in_the_accumulator_before_counts_as_it_was() -> None:
    """The error of the op is that on the inputs it had, 256 among them: added once more, all is right to a rounding."""
    with precheck.watch() as report:
        total = torch.full((4,), 256.0).to(LOW)
        total.index_add_(0, torch.arange(4), torch.full((4,), 64.0).to(LOW))
    assert total.tolist() == [320.0] * 4
    assert report.findings == [], report.summary()


def looked_up(words: int, dtype: torch.dtype) -> tuple[torch.Tensor, precheck.Report]:
    """The gradient of a table of which 4000 rows are looked up, so many of them different."""
    table = torch.ones(words, 4, dtype=dtype, requires_grad=True)
    with precheck.watch() as report:
        functional.embedding(torch.arange(4000) % words, table).float().sum().mul(1.01).backward()
    assert table.grad is not None
    return table.grad, report


def test_a_kernel_of_a_backward_pass_is_held_against_its_own_error() -> None:
    gradient, report = looked_up(4, LOW)
    exact, of_float32 = looked_up(4, WIDE)
    assert not of_float32.findings
    assert not looked_up(2000, LOW)[1].findings
    if float((gradient.float() - exact).norm() / exact.norm()) <= SUM:
        pytest.skip("this build of torch adds up in float32 there")
    (finding,) = report.errors
    assert (finding.rule, finding.phase, finding.op) == ("local-drift", "backward", "aten.embedding_dense_backward.default")


def of_uneven_rows(most: int, along: float) -> precheck.Report:
    """The gradient of a table of 20 rows, of which the first is looked up `most` times and makes most of the norm."""
    rows = torch.cat([torch.zeros(most, dtype=torch.long), 1 + torch.arange(1400) % 19])
    upstream = torch.randn(len(rows), 16, generator=torch.Generator().manual_seed(3)) + along * (rows == 0)[:, None]
    table = torch.zeros(20, 16, dtype=LOW, requires_grad=True)
    with precheck.watch() as report:
        (functional.embedding(rows, table).float() * upstream).sum().backward()
    return report


def test_a_scattering_kernel_may_err_as_its_largest_rows_do() -> None:
    """A right sum of 2500 terms in bfloat16 may be off by more than one of 195, which is the mean of all rows."""
    assert not of_uneven_rows(2500, 0.0).findings
    report = of_uneven_rows(6000, 2.0)
    if not report.errors:
        pytest.skip("this build of torch adds up in float32 there")
    assert report.errors[0].op == "aten.embedding_dense_backward.default"


def averaged(counted: torch.dtype) -> precheck.Report:
    """A running mean in bfloat16, whose counter is counted in this format."""
    data = torch.randn(400, 16, generator=torch.Generator().manual_seed(0)) + 3
    count, mean = torch.zeros((), dtype=counted), torch.zeros(16, dtype=LOW)
    with precheck.watch() as report:
        for row in data:
            count += 1
            step = (row - mean.float()) * 2 / count.float()
            mean = (mean + step.to(LOW) / 2).to(LOW)
    return report


def test_what_an_accumulator_that_stands_still_makes_wrong_is_told_once() -> None:
    """The quotient by the counter has not a digit either, and no single op made that error: it is the counter's."""
    of_counter, of_mean = averaged(LOW).errors, averaged(WIDE).errors
    assert {finding.rule for finding in [*of_counter, *of_mean]} == {"absorption"}
    assert len(of_counter) == len(of_mean) + 1
