"""What pytest's start costs a project: no import of torch or numpy, in a project that uses precheck or one that does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

WATCH = "import sys\nprint('loaded:', *sorted({'torch', 'numpy', 'hypothesis', 'safetensors'} & set(sys.modules)))"
ALONE = ("-p", "no:hypothesispytest", "-p", "no:benchmark")  # they may import numpy on their own


def loaded(code: str) -> set[str]:
    result = subprocess.run([sys.executable, "-c", f"{code}\n{WATCH}"], capture_output=True, text=True, check=True)
    return set(result.stdout.split("loaded:")[1].split())


def test_the_plugin_imports_nothing_heavy() -> None:
    assert loaded("import precheck.plugin.hooks") == set()


def test_this_test_can_fail() -> None:
    assert loaded("import precheck.plugin.hooks, precheck.observe.recording.sketch") >= {"torch"}


@pytest.mark.parametrize("options", [(), ("--precision=bf16",), ("--golden-refresh",), ("--golden-prune",)])
def test_a_whole_run_without_checks_imports_nothing_heavy(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makeconftest(
        """
        import sys
        def pytest_unconfigure(config):
            print("heavy:", *sorted({"torch", "numpy"} & set(sys.modules)))
        """
    )
    pytester.makepyfile("def test_it(precision): assert precision.name")
    (pytester.path / "golden").mkdir()
    result = pytester.runpytest_subprocess("-s", *ALONE, *options)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["heavy:"])


USED_ALWAYS = "fixtures hooks markers naming results selecting settings".split()


def test_a_run_that_uses_nothing_loads_what_each_run_needs(pytester: pytest.Pytester) -> None:
    """Of the plugin, and of all else formats, recipes and precisions alone: everything else is loaded where it is asked for."""
    pytester.makeconftest(
        """
        import sys
        def pytest_unconfigure(config):
            print("ours:", *sorted(name for name in sys.modules if name.startswith(("precheck.goldens.", "precheck.plugin."))))
        """
    )
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_subprocess("-s", *ALONE)
    result.stdout.fnmatch_lines([f"ours: precheck.goldens.place {' '.join(f'precheck.plugin.{name}' for name in USED_ALWAYS)}"])


def test_without_xdist_it_works(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(precision): assert precision.name == 'bf16-mixed'")
    assert pytester.runpytest_inprocess("-p", "no:xdist", "--precision=bf16").ret == 0


def test_a_project_that_registers_the_same_option_can_leave_the_plugin_out(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--precision', default='fp16')")
    pytester.makepyfile("def test_it(request): assert request.config.getoption('precision') == 'fp16'")
    assert pytester.runpytest_subprocess("-p", "no:precheck").ret == 0
