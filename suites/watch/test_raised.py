"""A block that raises: its exception comes out as it was, with a note of what was found, and the report is whole."""

from __future__ import annotations

import re
import sys

import pytest
import torch

import precheck

NOTES = pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions take notes since Python 3.11")


class Refused(ValueError):
    pass


def unscaled(length: torch.Tensor) -> float:
    """Divides by a length that underflowed."""
    return 1.0 / length.half().item()


def overflowing(then: BaseException) -> None:
    torch.full((4,), 300.0).half().square().sum().item()
    raise then


def healthy(then: BaseException, cause: Exception) -> None:
    assert torch.ones(3).half().sum() > 0
    raise then from cause


def notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


@NOTES
def test_the_exception_carries_the_first_error() -> None:
    with pytest.raises(ZeroDivisionError, match="float division by zero") as raised, precheck.watch() as report:
        unscaled(torch.tensor(1e-9))
    (finding,) = report.errors
    assert notes(raised.value) == [f"precheck.watch() found underflow before this: {finding.message}; cure: {finding.remedy}"]
    assert "1e-09 in the reference became zero here" in finding.message
    assert "the code raised ZeroDivisionError" in finding.message


@NOTES
def test_one_watch_within_another_notes_it_once() -> None:
    with pytest.raises(ZeroDivisionError) as raised, precheck.watch(), precheck.watch():
        unscaled(torch.tensor(1e-9))
    assert len(notes(raised.value)) == 1


def test_an_exception_of_its_own_making_is_left_as_it_is() -> None:
    """The same object, with its cause and its arguments, and without a note where nothing was found."""
    mine, why = Refused("no", 3), KeyError("why")
    with pytest.raises(Refused) as raised, precheck.watch() as report:
        healthy(mine, why)
    assert raised.value is mine
    assert (mine.args, mine.__cause__, notes(mine)) == (("no", 3), why, [])
    assert not report.findings
    assert report.facts["shadowed"] > 0


def test_what_was_found_before_is_in_the_report() -> None:
    with pytest.raises(Refused), precheck.watch() as report:
        overflowing(Refused())
    assert [finding.rule for finding in report.errors] == ["overflow"]


def test_an_exception_that_the_block_catches_is_its_own_affair() -> None:
    with precheck.watch() as report:
        scores = torch.zeros(4).half()
        with pytest.raises(RuntimeError):
            scores.masked_fill_(torch.arange(4) > 2, -1e20)
        softened = torch.softmax(scores.masked_fill(torch.arange(4) > 2, -6e4), -1)
    assert not report.findings, report.summary()
    assert softened[3] == 0


def into(table: torch.Tensor) -> torch.Tensor:
    rows = torch.ones(3, 4).bfloat16()
    return table.index_add_(0, torch.arange(3), rows.float() / 3)


def test_a_mixture_of_formats_is_traced_to_the_cast_where_it_began() -> None:
    with pytest.raises(RuntimeError, match="same scalar type"), precheck.watch() as report:
        into(torch.zeros(5, 4).bfloat16())
    (finding,) = report.errors
    assert (finding.rule, finding.op) == ("dtype-leak", "aten.index_add_.default")
    assert "combine float32 and bfloat16 here; the float32 operand is made float32 at cast (aten._to_copy)" in finding.message


def widened(low: torch.Tensor) -> torch.Tensor:
    return low.float() - 1


def mixed(low: torch.Tensor, way: str) -> torch.Tensor:
    wide = {"promotion": lambda: low * torch.ones(4), "handed over": lambda: widened(low), "here": lambda: low}[way]()
    if way == "here":
        wide = low.float() - 1
    return wide @ torch.ones(4, 2).bfloat16()


@pytest.mark.parametrize(("way", "blamed"), [("promotion", "aten.mul.Tensor"), ("handed over", "aten._to_copy.default"), ("here", "aten.mm.default")])
def test_a_promotion_is_blamed_for_a_mixture_and_a_cast_only_where_it_is_handed_over(way: str, blamed: str) -> None:
    with pytest.raises(RuntimeError, match="same dtype"), precheck.watch() as report:
        mixed(torch.ones(3, 4).bfloat16() / 3, way)
    (finding,) = report.errors
    assert (finding.rule, finding.op) == ("dtype-leak", blamed)


def two_low_formats(way: str) -> None:
    rows, layer = torch.ones(1, 3, 8) / 3, torch.nn.Conv1d(3, 2, 3).half()
    if way == "an op":
        rows.bfloat16() @ torch.ones(1, 8, 2).half()
    else:
        layer(rows.bfloat16())


@pytest.mark.parametrize(("way", "blamed"), [("an op", "aten.bmm.default"), ("a call", "aten._to_copy.default")])
def test_two_low_formats_do_not_mix_either(way: str, blamed: str) -> None:
    with pytest.raises(RuntimeError), precheck.watch() as report:
        two_low_formats(way)
    (finding,) = report.errors
    assert (finding.rule, finding.op) == ("dtype-leak", blamed)
    assert "combine float16 and bfloat16" in finding.message
    assert finding.remedy == "cast one of the two: the float16 operand to bfloat16, or the other to float16"


def test_what_raises_for_another_reason_beside_two_low_formats_is_let_pass() -> None:
    with pytest.raises(RuntimeError), precheck.watch() as report:
        torch.ones(2, 3).bfloat16(), torch.ones(2, 3).half() @ torch.ones(4, 3).half()
    assert not report.findings


@pytest.mark.parametrize("table", [torch.zeros(5, 3), torch.zeros(5, 3).bfloat16()])
def test_shapes_that_do_not_fit_are_no_matter_of_formats(table: torch.Tensor) -> None:
    with pytest.raises((RuntimeError, IndexError)), precheck.watch() as report:
        table.index_add_(0, torch.arange(3), torch.ones(3, 4).to(table.dtype))
    assert not report.findings


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_block_is_reported_too(ending: type[BaseException]) -> None:
    with pytest.raises(ending) as raised, precheck.watch() as report:
        overflowing(ending())
    assert [finding.rule for finding in report.errors] == ["overflow"]
    assert not notes(raised.value)


def padded_to(many: int, dtype: torch.dtype) -> torch.Tensor:
    """A mask as long as the longest of sequences, whose lengths are kept in that format."""
    longest = torch.tensor([many, 7]).to(dtype).max()
    return torch.zeros(many) + torch.arange(int(longest))


def test_a_length_that_the_format_rounds_is_told_where_the_exception_names_both_numbers() -> None:
    with pytest.raises(RuntimeError, match="2132"), precheck.watch() as report:
        padded_to(2131, torch.half)
    (finding,) = report.errors
    assert (finding.rule, finding.op) == ("integer-rounding", "aten._to_copy.default")
    assert "2131 becomes 2132 in float16" in finding.message


@pytest.mark.parametrize(("many", "dtype"), [(2131, torch.float32), (2132, torch.half)])
def test_a_length_that_the_format_holds_fits(many: int, dtype: torch.dtype) -> None:
    with precheck.watch() as report:
        padded_to(many, dtype)
    assert not report.findings


def read(many: int, then: Exception) -> None:
    assert int(torch.tensor([many, 7]).to(torch.half).max()) > many
    raise then


@pytest.mark.parametrize("why", ["no more than 2132 of them", "no 2131, and no 7", "not so many"])
def test_a_number_that_python_reads_is_no_cause_if_the_exception_does_not_compare_it(why: str) -> None:
    """It may be a measure, which a program may round."""
    with pytest.raises(Refused, match="no"), precheck.watch() as report:
        read(2131, Refused(why))
    assert not report.errors


def looked_up(table: torch.Tensor, learned: list[float]) -> torch.Tensor:
    """Places come from a weight, so that single integers may differ."""
    return table[(torch.nn.Parameter(torch.tensor(learned)).bfloat16() * 999).long()]


def test_an_index_out_of_range_is_told_with_the_rounding_that_made_it() -> None:
    with pytest.raises(IndexError, match="index 1000 is out of bounds"), precheck.watch() as report:
        looked_up(torch.zeros(1000), [0.0, 0.5, 0.9999, 1.0])
    (finding,) = [each for each in report.errors if each.rule == "integer-rounding"]
    assert re.search(r"998 becomes 1000, beyond all integers of the reference, since .*; then an index .*IndexError", finding.message)
    assert finding.op == "aten.mul.Tensor"


def test_an_index_out_of_range_in_the_reference_too_is_the_users_own() -> None:
    with pytest.raises(IndexError), precheck.watch() as report:
        looked_up(torch.zeros(100), [0.3, 0.6001, 8.0])
    assert not report.errors


def test_rounded_integers_within_the_table_do_not_explain_an_index_out_of_range() -> None:
    with pytest.raises(IndexError, match="index 7 is out of bounds"), precheck.watch() as report:
        torch.zeros(3)[torch.tensor([7]) + looked_up(torch.zeros(1001), [0.0, 0.5, 0.9999, 1.0]).long()]
    assert not report.errors


def test_where_torch_does_not_say_how_large_the_table_is_a_rounded_index_is_a_warning() -> None:
    with pytest.raises(IndexError, match="index out of range in self"), precheck.watch() as report:
        torch.nn.functional.embedding((torch.nn.Parameter(torch.tensor([0.5, 1.0])).bfloat16() * 999).long(), torch.zeros(1000, 2))
    assert [(each.rule, each.severity) for each in report.findings] == [("integer-rounding", "warning")]
