"""The `precision` fixture: how it parametrizes, beside a test's own parameters, classes, fixtures, unittest and @given."""

from __future__ import annotations

import pytest


def passed(result: pytest.RunResult) -> list[str]:
    return [line.split("::", 1)[1].split(" ")[0] for line in result.outlines if " PASSED" in line]


def test_it_is_the_precision_that_was_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch

        def test_it(precision):
            assert (precision.name, precision.compute_dtype, precision.param_dtype) in [
                ("bf16-mixed", torch.bfloat16, torch.float32), ("16-true", torch.float16, torch.float16)
            ]
            with precision.autocast():
                result = torch.ones(2, 2) @ torch.ones(2, 2)
            assert (result.dtype == torch.bfloat16) == (precision.name == "bf16-mixed")
        """
    )
    result = pytester.runpytest_inprocess("--precision=bf16,16-true", "-v")
    assert passed(result) == ["test_it[bf16-mixed]", "test_it[16-true]"]


def test_it_joins_a_tests_own_parameters_classes_and_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(params=["a", "b"])
        def letter(request, precision):
            return request.param + precision.name

        @pytest.fixture
        def doubled(request):
            return request.param * 2

        @pytest.mark.parametrize("number", [1, 2])
        class TestGroup:
            def test_direct(self, number, precision): assert precision.name == "bf16-mixed"
            def test_through_a_fixture(self, letter, number): assert letter[1:] == "bf16-mixed"

        @pytest.mark.parametrize("doubled", [3], indirect=True)
        def test_indirect(doubled, precision): assert doubled == 6

        def test_that_does_not_ask(): pass
        """
    )
    result = pytester.runpytest_inprocess("--precision=bf16", "-v")
    assert sorted(passed(result)) == sorted(
        [
            "TestGroup::test_direct[bf16-mixed-1]", "TestGroup::test_direct[bf16-mixed-2]",
            *(f"TestGroup::test_through_a_fixture[bf16-mixed-{letter}-{number}]" for letter in "ab" for number in "12"),
            "test_indirect[bf16-mixed-3]", "test_that_does_not_ask",
        ]
    )  # fmt: skip


@pytest.mark.parametrize(("hook", "end"), [("tryfirst=True", "pass"), ("wrapper=True", "return (yield)")])
def test_it_comes_first_also_before_what_the_users_own_hook_parametrizes(pytester: pytest.Pytester, hook: str, end: str) -> None:
    pytester.makeconftest(
        f"""
        import pytest
        @pytest.hookimpl({hook})
        def pytest_generate_tests(metafunc):
            if "size" in metafunc.fixturenames:
                metafunc.parametrize("size", [7])
            {end}
        """
    )
    pytester.makepyfile("def test_it(size, precision): pass")
    assert passed(pytester.runpytest_inprocess("--precision=bf16", "-v")) == ["test_it[bf16-mixed-7]"]


def test_a_tests_own_parametrize_of_that_name_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nprecision_policy = native\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("precision", [3, 5])
        def test_decimals(precision): assert precision in (3, 5)

        @pytest.mark.parametrize(("width", "precision"), [(1, "bf16"), (2, "32")], indirect=["precision"])
        def test_indirect(width, precision):
            assert (precision.name, precision.policy) == ({1: "bf16-mixed", 2: "32-true"}[width], "native")

        @pytest.mark.parametrize("precision", ["bf17"], indirect=True)
        def test_unknown(precision): pass
        """
    )
    result = pytester.runpytest_inprocess("--precision=tf32", "-v")
    assert passed(result) == ["test_decimals[3]", "test_decimals[5]", "test_indirect[1-bf16]", "test_indirect[2-32]"]
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(["unknown precision 'bf17'; do you mean bf16? pytest --help lists all"])


def test_a_users_own_fixture_of_that_name_is_left_alone(told: pytest.Pytester) -> None:
    told.makepyfile(
        test_own="""
        import pytest

        @pytest.fixture
        def precision(): return "16-mixed"

        def test_it(precision): assert precision == "16-mixed"
        def test_check(check_precision): assert check_precision(1.0, {}).precision == "16-mixed"
        """,
        test_built_on_ours="""
        import pytest

        @pytest.fixture
        def precision(precision): return precision

        def test_it(precision): assert precision.name in ("bf16-mixed", "tf32")
        """,
    )
    result = told.runpytest_inprocess("--precision=bf16,tf32", "-v")
    assert sorted(passed(result)) == ["test_check", "test_it", "test_it[bf16-mixed]", "test_it[tf32]"]


def test_it_is_safe_under_given(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import precheck
        import torch
        from hypothesis import given, settings, strategies

        @settings(max_examples=3, deadline=None, database=None)
        @given(size=strategies.integers(1, 4))
        def test_it(precision, size):
            report = precheck.measure(torch.nn.Linear(4, 4), torch.ones(size, 4), precision=precision)
            assert report.precision == "bf16-mixed" and not report.errors
        """
    )
    result = pytester.runpytest_inprocess("--precision=bf16", "-v")
    assert passed(result) == ["test_it[bf16-mixed]"]


def test_unittest_is_untouched(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import unittest

        class TestOld(unittest.TestCase):
            precision = 3
            def test_it(self): self.assertEqual(self.precision, 3)
        """
    )
    result = pytester.runpytest_inprocess("--precision=bf16", "-v")
    assert passed(result) == ["TestOld::test_it"]


def test_doctests_are_untouched(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(module='"""\n>>> 1 + 1\n2\n"""')
    pytester.runpytest_inprocess("--precision=bf16", "--doctest-modules").assert_outcomes(passed=1)


def test_fixtures_are_listed_with_what_they_are(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest_inprocess("--fixtures").stdout.str()
    assert "precision [session scope] -- " in text
    assert "precision_device [session scope] -- " in text
    assert "check_precision -- " in text
    assert "    check_precision(model, inputs, *, loss=None, optimizer=None, steps=1, seed=0, depth=None, allow=None) -> Report." in text
