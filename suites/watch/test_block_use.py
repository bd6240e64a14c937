"""`watch` and `monitor` used in another way than as a block: one error or warning says what to write."""

import contextlib
import warnings

import pytest
import torch

import precheck

WRITE = "write `with precheck.watch\\(\\) as report:`"


def half():
    return torch.ones(4, dtype=torch.bfloat16) * 3


def quiet():
    """Blocks of these tests that are never entered warn, which one test is about."""
    return pytest.warns(RuntimeWarning, match="without `with`")


def test_a_block_watches_as_it_did():
    with precheck.watch() as report:
        half()
    assert report.facts["ops"] == 2


def test_a_stack_enters_it():
    with contextlib.ExitStack() as stack:
        report = stack.enter_context(precheck.watch())
        half()
    assert report.facts["ops"] == 2


def test_never_entered_warns_at_the_users_line():
    with pytest.warns(RuntimeWarning, match="precheck.watch\\(\\) was called without `with`, so nothing was watched; " + WRITE) as told:
        precheck.watch(torch.nn.Linear(2, 2))
    assert told[0].filename == __file__


def test_an_entered_block_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with precheck.watch():
            half()


@pytest.mark.parametrize(
    "use",
    [lambda: precheck.watch().summary(), lambda: list(precheck.watch()), lambda: next(precheck.watch()), lambda: precheck.watch()(half)],
    ids=["report", "loop", "next", "decorator"],
)
def test_other_uses_say_what_to_write(use):
    with quiet(), pytest.raises((AttributeError, TypeError), match=WRITE):
        use()


def test_without_parentheses():
    with pytest.raises(TypeError, match="watch stands in a `with` without its parentheses; " + WRITE), precheck.watch:
        half()


def test_monitor_without_parentheses():
    with pytest.raises(TypeError, match=r"without its parentheses; write `with precheck.monitor\(model\) as monitor:`"), precheck.monitor:
        half()


def test_a_block_is_entered_once():
    block = precheck.watch()
    with block:
        half()
    with pytest.raises(RuntimeError, match="entered before; make a new one"), block:
        half()


@pytest.mark.parametrize(
    ("given", "found"),
    [(torch.nn.Linear, "the class Linear"), (half, "a function"), ((each for each in ()), "a generator")],
    ids=["class", "function", "generator"],
)
def test_what_is_no_model_is_refused_at_the_call(given, found):
    with pytest.raises(precheck.InputError, match=f"model is {found}; pass a torch.nn.Module, or nothing"):
        precheck.watch(given)


def test_copied_attributes_do_not_recurse():
    with quiet():
        assert not hasattr(precheck.watch(), "__len__")


def test_a_report_that_is_read_within_its_block_does_not_look_like_a_pass() -> None:
    with precheck.watch() as report:
        kept = torch.arange(300).to(torch.bfloat16).sin()
        early = report.summary()
        with pytest.raises(RuntimeError, match="use its report after the block"):
            report.raise_for_errors()
    assert kept.numel()
    assert early.startswith("nothing is judged yet: the block of watch() has not ended")
    assert [each.rule for each in report.errors] == ["integer-rounding"]
    assert "open" not in report.facts
