"""Under pytest-xdist: the same verdicts, one summary, whole goldens, whatever the distribution; crashes included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from projects import FAKED, FAKED_LIGHT, HEALTHY, OVERFLOWS, Project

from precheck.goldens.file import read
from precheck.goldens.place import golden_files

pytest.importorskip("xdist")
pytestmark = pytest.mark.usefixtures("forked_python")

LEAN = ("-p", "no:hypothesispytest", "-p", "no:benchmark")  # each worker would import them

CHECKS = """
    import pytest

    @pytest.mark.parametrize("r", [0.5, 1.5, 2.5])
    class TestGroup:
        def test_one(self, check_precision, r):
            check_precision(r, {"16-mixed": [("error", "overflow")]} if r == 2.5 else {})

    @pytest.mark.xdist_group("alone")
    @pytest.mark.allow_finding("nan", reason="known")
    def test_allowed(check_precision):
        check_precision(9.0, {"bf16-mixed": [("error", "nan")]})
"""


@pytest.fixture
def light(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(FAKED_LIGHT)
    pytester.makepyfile(test_it=CHECKS)
    return pytester


def section(result: pytest.RunResult) -> list[str]:
    """The lines of precheck's section, in an order that does not hang on which worker came first."""
    lines = result.outlines
    start = next(place for place, line in enumerate(lines) if "= precheck =" in line)
    end = next(place for place, line in enumerate(lines) if place > start and line.startswith("=="))
    return sorted(lines[start + 1 : end])


@pytest.mark.parametrize("options", [("-n0",), ("-n2", "--dist=loadscope"), ("-n2", "--dist=loadgroup")])
def test_the_section_is_what_it_is_without_xdist(light: pytest.Pytester, options: tuple[str, ...]) -> None:
    light.makeconftest(FAKED)
    alone = light.runpytest_inprocess("-p", "no:xdist", "--precision=bf16,16-mixed", "--drift-report=json:alone.json")
    alone.assert_outcomes(passed=7, failed=1)
    light.makeconftest(FAKED_LIGHT)
    spread = light.runpytest_subprocess("--precision=bf16,16-mixed", *LEAN, "--drift-report=json:spread.json", *options)
    spread.assert_outcomes(passed=7, failed=1)
    assert section(spread) == section(alone)
    assert len([line for line in spread.outlines if "= precheck =" in line]) == 1
    alone_json, spread_json = (json.loads((light.path / f"{name}.json").read_text(encoding="utf8")) for name in ("alone", "spread"))
    key = "nodeid"
    assert sorted(spread_json["tests"], key=lambda test: str(test[key])) == sorted(alone_json["tests"], key=lambda test: str(test[key]))


def test_goldens_are_written_whole_by_several_workers(pytester: pytest.Pytester, project: Project) -> None:
    code = '@pytest.mark.parametrize("seed", range(8))\ndef test_it(check_precision, seed):\n    check_precision(make(seed), data())\n'
    golden = project(code, record=False)
    result = pytester.runpytest_subprocess("-n2", *LEAN, "--golden-refresh")
    result.stdout.fnmatch_lines(["goldens: 8 written"])
    files = golden_files(golden)
    assert len(files) == 8
    assert all(read(path).records for path in files)
    assert sorted(path for path in golden.rglob("*") if path.is_file()) == files, "nothing half written is left"
    pytester.runpytest_inprocess("--golden-refresh=all").stdout.fnmatch_lines(["goldens: 8 unchanged"])


def test_a_real_check_in_a_worker(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY, OVERFLOWS)
    result = pytester.runpytest_subprocess("-n1", *LEAN, "--precision=16-mixed", "--drift-report=json:drift.json")
    result.assert_outcomes(passed=1, failed=1)
    count = "2 checks under 16-mixed: 1 passed, 1 failed; worst r inf of *"
    result.stdout.fnmatch_lines(["overflow: output of wide: *", "*inf*Inf/NaN*output*", count])
    assert len(json.loads((pytester.path / "drift.json").read_text(encoding="utf8"))["tests"]) == 2


class TestUnused:
    """Goldens that no test uses: the workers collect, the controller says."""

    @pytest.fixture
    def leftover(self, light: pytest.Pytester) -> Path:
        path = light.path / "golden" / "test_gone" / "test_old.safetensors"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
        return path

    def test_are_named(self, light: pytest.Pytester, leftover: Path) -> None:
        result = light.runpytest_subprocess("-n2", *LEAN, "--golden-unused=fail")
        result.stdout.fnmatch_lines(["goldens that no test uses: 1 *", "  golden/test_gone/test_old.safetensors", "1 golden that no test uses *"])
        assert result.ret == 1

    def test_are_not_judged_where_tests_were_left_out(self, light: pytest.Pytester, leftover: Path) -> None:
        result = light.runpytest_subprocess("-n2", *LEAN, "--golden-unused=fail", "-k", "allowed")
        result.stdout.no_fnmatch_line("*no test uses*")
        assert result.ret == 0

    def test_are_not_judged_after_a_crash(self, light: pytest.Pytester, leftover: Path) -> None:
        light.makepyfile(test_crash="import os\ndef test_crash(check_precision):\n    check_precision(1.0, {})\n    os._exit(3)")
        result = light.runpytest_subprocess("-n2", *LEAN, "--golden-unused=fail", "--precision=bf16")
        result.assert_outcomes(passed=4, failed=1)
        result.stdout.no_fnmatch_line("*no test uses*")
        result.stdout.fnmatch_lines(["4 checks under bf16-mixed: 4 passed, 0 failed; *"])

    def test_are_not_those_of_tests_that_workers_were_told_to_ignore(self, light: pytest.Pytester, leftover: Path) -> None:
        light.makepyfile(test_gone="def test_old(check_precision): pass")
        result = light.runpytest_subprocess("-n2", *LEAN, "--golden-unused=fail", "--ignore=test_gone.py")
        result.stdout.no_fnmatch_line("*no test uses*")
        assert result.ret == 0

    def test_are_not_judged_where_the_run_was_cut_short(self, light: pytest.Pytester, leftover: Path) -> None:
        light.makepyfile(test_a="def test_bad(): assert 0")
        result = light.runpytest_subprocess("-n2", *LEAN, "-x", "--golden-unused=fail")
        result.stdout.no_fnmatch_line("*no test uses*")

    def test_are_not_deleted_where_a_module_was_not_collected(self, light: pytest.Pytester, leftover: Path) -> None:
        light.makepyfile(test_optional="import pytest\npytest.importorskip('not_there')")
        result = light.runpytest_subprocess("-n2", *LEAN, "--golden-prune")
        result.stdout.fnmatch_lines(["--golden-prune deleted nothing: test_optional.py was not collected"])
        assert leftover.exists()
        assert result.ret == 1


def test_a_marker_that_means_nothing_is_an_error_of_its_test(light: pytest.Pytester) -> None:
    light.makepyfile(test_it="import pytest\n@pytest.mark.allow_finding('overflown', reason='x')\ndef test_it(check_precision): pass")
    result = light.runpytest_subprocess("-n2", *LEAN)
    said = "@pytest.mark.allow_finding: there is no rule 'overflown'; do you mean overflow?"
    result.stdout.fnmatch_lines([f"ERROR test_it.py::test_it - Failed: {said}"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_the_controller_refuses_bad_options_once(light: pytest.Pytester) -> None:
    result = light.runpytest_subprocess("-n2", *LEAN, "--precision=bf17")
    assert result.stderr.str().count("unknown precision 'bf17'") == 1
    assert result.ret == pytest.ExitCode.USAGE_ERROR
