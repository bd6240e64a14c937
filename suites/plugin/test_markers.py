"""precision, expect_finding, allow_finding, gpu: what they do to a test, and what is said of their misuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

HAS_CUDA = torch.cuda.is_available()

OVERFLOW = '{"16-mixed": [("error", "overflow")]}'
TWO_ERRORS = '{"16-mixed": [("error", "overflow"), ("error", "lost-update")]}'


class TestPrecision:
    """@pytest.mark.precision(*names)."""

    CODE = """
        import pytest

        @pytest.mark.precision("fp16", "bf16-true")
        class TestSome:
            def test_two(self, check_precision):
                check_precision(1.0, {})

            @pytest.mark.precision("bf16-true", "tf32")
            def test_one(self, check_precision):
                check_precision(1.0, {})

        def test_all(check_precision):
            check_precision(1.0, {})

        @pytest.mark.precision("bf16-true")
        def test_without_a_fixture():
            pass
    """

    def test_a_test_runs_under_those_that_are_both_asked_for_and_named(self, told: pytest.Pytester) -> None:
        told.makepyfile(self.CODE)
        result = told.runpytest_inprocess("-v", "--precision=bf16,16-mixed,bf16-true")
        ran = [line.split("::", 1)[1].split()[0] for line in result.outlines if "PASSED" in line]
        assert sorted(ran) == sorted(
            [
                "TestSome::test_two[16-mixed]", "TestSome::test_two[bf16-true]", "TestSome::test_one[bf16-true]",
                "test_all[bf16-mixed]", "test_all[16-mixed]", "test_all[bf16-true]", "test_without_a_fixture",
            ]
        )  # fmt: skip
        result.assert_outcomes(passed=7)

    def test_a_test_for_none_of_those_asked_for_is_skipped_with_the_reason(self, told: pytest.Pytester) -> None:
        told.makepyfile(self.CODE)
        result = told.runpytest_inprocess("-rs", "--precision=bf16")
        result.assert_outcomes(passed=1, skipped=3)
        result.stdout.fnmatch_lines_random(
            ["SKIPPED*only for 16-mixed, bf16-true (this run: bf16-mixed)", "SKIPPED*only for bf16-true (this run: bf16-mixed)"]
        )


class TestExpectFinding:
    """@pytest.mark.expect_finding(rule)."""

    def test_a_test_passes_where_the_rule_fires_and_other_errors_still_fail_it(self, told: pytest.Pytester) -> None:
        told.makepyfile(
            f"""
            import pytest
            pytestmark = pytest.mark.expect_finding("overflow")

            def test_it_alone(check_precision):
                report = check_precision(9.0, {OVERFLOW})
                assert [finding.rule for finding in report.errors] == ["overflow"]

            def test_and_another(check_precision):
                check_precision(9.0, {TWO_ERRORS})

            @pytest.mark.expect_finding("lost-update")
            def test_both(check_precision):
                check_precision(9.0, {TWO_ERRORS})

            def test_in_the_second_check(check_precision):
                check_precision(1.0, {{}})
                check_precision(9.0, {OVERFLOW})
            """
        )
        result = told.runpytest_inprocess("--precision=16-mixed")
        result.assert_outcomes(passed=3, failed=1)
        result.stdout.fnmatch_lines(["*test_and_another*", "lost-update: told of layer under 16-mixed"])

    def test_a_test_fails_where_the_rule_does_not_fire(self, told: pytest.Pytester) -> None:
        told.makepyfile(
            f"""
            import pytest
            pytestmark = pytest.mark.expect_finding("overflow")

            def test_other_precision(check_precision):
                check_precision(1.0, {OVERFLOW})

            def test_other_finding(check_precision):
                check_precision(1.0, {{"bf16-mixed": [("warning", "headroom")]}})

            def test_no_check():
                pass
            """
        )
        result = told.runpytest_inprocess("--precision=bf16")
        result.assert_outcomes(failed=3)
        result.stdout.fnmatch_lines(
            [
                "expected overflow, and it found nothing under bf16-mixed; if*name them with @pytest.mark.precision",
                "expected overflow, and it found headroom under bf16-mixed; if*",
                "expected overflow, and the test made no check_precision, watch_precision, check_parity, check_invariance or check_kernel",
            ]
        )
        assert "Traceback" not in result.stdout.str()

    def test_a_failure_of_the_test_itself_comes_first(self, told: pytest.Pytester) -> None:
        told.makepyfile(
            """
            import pytest

            @pytest.mark.expect_finding("overflow")
            def test_fails(check_precision):
                assert 1 == 2
            """
        )
        result = told.runpytest_inprocess()
        result.stdout.fnmatch_lines(["E*assert 1 == 2"])
        result.stdout.no_fnmatch_line("*expected overflow*")


def test_allow_finding_lets_errors_of_a_rule_pass_and_lists_them_with_the_reason(told: pytest.Pytester) -> None:
    told.makepyfile(
        f"""
        import pytest

        @pytest.mark.allow_finding("overflow", reason="known, #12")
        def test_allowed(check_precision):
            check_precision(9.0, {OVERFLOW})

        @pytest.mark.allow_finding("overflow", reason="known, #12")
        def test_only_that(check_precision):
            check_precision(9.0, {TWO_ERRORS})

        @pytest.mark.allow_finding("overflow", reason="known, #12")
        @pytest.mark.allow_finding("lost-update", reason="tiny lr")
        def test_both(check_precision):
            check_precision(9.0, {TWO_ERRORS})

        @pytest.mark.allow_finding("overflow", reason="may not happen")
        def test_need_not_fire(check_precision):
            check_precision(1.0, {{}})
        """
    )
    result = told.runpytest_inprocess("--precision=16-mixed", "-v")
    result.stdout.fnmatch_lines_random(["*test_only_that[[]16-mixed] FAILED*", "*test_both[[]16-mixed] PASSED*"])
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "4 checks under 16-mixed: 3 passed, 1 failed; worst r 9 of 3 allowed: output of layer in *",
            "allowed: overflow (known, #12) in test_allow*::test_allowed[[]16-mixed]",
            "allowed: lost-update (tiny lr) in test_allow*::test_both[[]16-mixed]",
        ]
    )


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("precision()", '@pytest.mark.precision takes names alone, as in @pytest.mark.precision("bf16-mixed", "16-mixed")'),
        ("precision(name='bf16')", "@pytest.mark.precision takes names alone, as in *"),
        ("precision('bf16', strict=True)", "@pytest.mark.precision takes names alone, as in *"),
        ("precision('bf17')", "@pytest.mark.precision: unknown precision 'bf17'; do you mean bf16? pytest --help lists all"),
        ("precision('float16')", "@pytest.mark.precision: precision float16 means two things: 16-mixed*"),
        ("expect_finding()", '@pytest.mark.expect_finding takes one rule, as in @pytest.mark.expect_finding("lost-update")'),
        ("expect_finding('overflow', 'nan')", "@pytest.mark.expect_finding takes one rule, as in *"),
        ("expect_finding('overflown')", "@pytest.mark.expect_finding: there is no rule 'overflown'; do you mean overflow?"),
        ("expect_finding('digits')", "@pytest.mark.expect_finding: there is no rule 'digits'; there are overflow, *"),
        ("expect_finding(['nan'])", "@pytest.mark.expect_finding: there is no rule ['nan']; there are *"),
        ("allow_finding('nan')", "@pytest.mark.allow_finding takes one rule and a reason, as in @pytest.mark.allow_finding(*, reason=*)"),
        ("allow_finding('nan', reason='')", "@pytest.mark.allow_finding takes one rule and a reason, as in *"),
        ("allow_finding('nan', why='x')", "@pytest.mark.allow_finding takes one rule and a reason, as in *"),
        ("gpu(16)", "@pytest.mark.gpu takes min_memory=GiB and min_capability=(major, minor), and nothing else"),
        ("gpu(memory=16)", "@pytest.mark.gpu takes min_memory=GiB and min_capability=(major, minor), and nothing else"),
        ("gpu(min_memory='16GB')", "@pytest.mark.gpu(min_memory='16GB'): give GiB as a number, as in min_memory=16"),
        ("gpu(min_memory=float('inf'))", "@pytest.mark.gpu(min_memory=inf): give GiB as a number, as in min_memory=16"),
        ("gpu(min_memory=-1)", "@pytest.mark.gpu(min_memory=-1): give GiB as a number, as in min_memory=16"),
        ("gpu(min_capability=8)", "@pytest.mark.gpu(min_capability=8): give a pair, as in min_capability=(8, 0)"),
        ("gpu(min_capability=(8.5, 0))", "@pytest.mark.gpu(min_capability=(8.5, 0)): give a pair, as in min_capability=(8, 0)"),
        ("gpu(min_capability=(8, 0, 1))", "@pytest.mark.gpu(min_capability=(8, 0, 1)): give a pair, as in min_capability=(8, 0)"),
        ("gpu(min_capability='sm_80')", "@pytest.mark.gpu(min_capability='sm_80'): give a pair, as in min_capability=(8, 0)"),
    ],
)
def test_a_marker_that_means_nothing_is_an_error_of_its_test_in_one_line(told: pytest.Pytester, marker: str, message: str) -> None:
    two = "def test_one(check_precision): pass\ndef test_two(check_precision): check_precision(1.0, {})"
    told.makepyfile(test_it=f"import pytest\n@pytest.mark.{marker}\n{two}")
    result = told.runpytest_inprocess("--precision=bf16")
    result.stdout.fnmatch_lines(["*ERROR at setup of test_one*", message.replace("[", "[[]"), "ERROR test_it.py::test_one - Failed: @pytest.mark.*"])
    result.assert_outcomes(passed=1, errors=1)  # the other test of the file runs
    assert "Traceback" not in result.stdout.str()
    assert "During handling" not in result.stdout.str()


def test_a_unittest_is_told_when_it_is_set_up(told: pytest.Pytester) -> None:
    told.makepyfile(
        """
        import unittest
        import pytest

        class TestOld(unittest.TestCase):
            @pytest.mark.gpu(16)
            def test_bad(self): pass

            @pytest.mark.precision("bf16")
            def test_other_precision(self): pass

            def test_good(self): pass
        """
    )
    result = told.runpytest_inprocess()
    result.assert_outcomes(passed=1, errors=1, skipped=1)
    result.stdout.fnmatch_lines(["@pytest.mark.gpu takes min_memory=GiB*"])


@pytest.mark.skipif(HAS_CUDA, reason="says what is skipped without a CUDA device")
def test_gpu_skips_without_a_device(told: pytest.Pytester) -> None:
    told.makepyfile("import pytest\n@pytest.mark.gpu(min_memory=0.5, min_capability='8.0')\ndef test_one(): pass")
    result = told.runpytest_inprocess("-rs")
    result.stdout.fnmatch_lines(["SKIPPED*needs a CUDA device, and torch sees none"])
    result.assert_outcomes(skipped=1)


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device to ask too much of")
@pytest.mark.parametrize(
    ("needs", "outcome"), [("", "passed"), ("min_memory=1e6", "skipped"), ("min_capability=(99, 0)", "skipped"), ("min_memory=0.1", "passed")]
)
def test_gpu_measures_the_device(told: pytest.Pytester, needs: str, outcome: str) -> None:
    told.makepyfile(f"import pytest\n@pytest.mark.gpu({needs})\ndef test_one(): pass")
    result = told.runpytest_inprocess("-rs")
    result.assert_outcomes(**{outcome: 1})


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large one of 2022 and a small one of 2018."""
    from types import SimpleNamespace

    capability, memory = [(9, 0), (7, 5)], [80, 15]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: capability[number])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"Toy {number}")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(total_memory=memory[number] * 2**30))


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize(
    ("device", "needs", "reason"),
    [
        ("auto", {}, ""),
        ("auto", {"min_memory": 80, "min_capability": (9, 0)}, ""),
        ("cuda:1", {"min_memory": 15, "min_capability": "7.5"}, ""),
        ("cuda:1", {"min_capability": (8, 0)}, "needs compute capability 8.0, and Toy 1 has 7.5"),
        ("cuda:1", {"min_capability": 8.0}, "needs compute capability 8.0, and Toy 1 has 7.5"),
        ("auto", {"min_capability": [10, 0]}, "needs compute capability 10.0, and Toy 0 has 9.0"),
        ("cuda:1", {"min_memory": 16}, "needs 16 GiB of device memory, and Toy 1 has 15.0"),
        ("cuda", {"min_memory": 80.5}, "needs 80.5 GiB of device memory, and Toy 0 has 80.0"),
        ("cpu", {}, "needs a CUDA device, and this run is on the CPU (--precision-device=cpu)"),
    ],
)
def test_gpu_needs_are_compared_with_the_device_of_the_run(device: str, needs: dict[str, Any], reason: str) -> None:
    from precheck.plugin.markers import no_gpu

    assert no_gpu(pytest.mark.gpu(**needs).mark, device) == reason


@pytest.mark.usefixtures("two_devices")
def test_gpu_looks_at_the_device_that_the_command_line_names(told: pytest.Pytester) -> None:
    told.makepyfile("import pytest\n@pytest.mark.gpu\ndef test_one(): pass")
    told.runpytest_inprocess("--precision-device=cpu").assert_outcomes(skipped=1)
    told.runpytest_inprocess().assert_outcomes(passed=1)


def test_all_markers_are_registered(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest_inprocess("--markers").stdout.str()
    for signature in ("precision(*names):", "expect_finding(rule):", "allow_finding(rule, reason=...):", "gpu(min_memory=GiB,"):
        assert f"@pytest.mark.{signature}" in text
    pytester.makepyfile("import pytest\n@pytest.mark.precision('32-true')\ndef test_one(): pass")
    assert pytester.runpytest_inprocess("--strict-markers").ret == 0
