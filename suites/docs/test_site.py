"""The site: it is built without a warning, its reference is what the code says, and every page is in it."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import browser
import module_table
import pytest
import reference
from named import ROOT

import precheck
from precheck.plugin import fixtures


def test_the_list_of_modules_is_what_their_docstrings_say() -> None:
    assert module_table.PAGE.read_text(encoding="utf8") == module_table.page(), "stale: type python suites/docs/module_table.py"


def test_the_list_of_modules_leaves_no_folder_out() -> None:
    assert set(module_table.FOLDERS) == module_table.folders()


def test_every_module_says_what_it_is() -> None:
    assert not [path for path in module_table.PACKAGE.rglob("*.py") if not module_table.said(path)]


@pytest.mark.parametrize("name", reference.pages())
def test_the_reference_is_what_the_code_says(name: str) -> None:
    assert (reference.FOLDER / name).read_text(encoding="utf8") == reference.pages()[name], "stale: type python suites/docs/reference.py"


def test_the_reference_has_every_option_entry_name_and_fixture() -> None:
    pages = reference.pages()
    assert {"--precision", "--golden-refresh", "--drift-report"} <= reference.flags()
    assert all(f"`{flag}" in pages["command-line.md"] for flag in reference.flags())
    for command in ("golden show", "golden diff", "report", "rules", "kernel"):
        assert f"### `python -m precheck {command}`" in pages["command-line.md"]
    documented = set(re.findall(r"precheck\.(\w+)", pages["api.md"]))
    assert set(precheck.__all__) - {"__version__"} <= documented
    told = dict(re.findall(r"^\| `(\w+)[^`]*` \| (\S.*[.:]) \|$", pages["api.md"], re.MULTILINE))
    assert told["measure"] == "Runs `model` under `precision` and judges it against a float32 run of the same process."
    assert told.keys() == set(re.findall(r"^::: precheck\.(\w+)$", pages["api.md"], re.MULTILINE))
    plugins = {name for name, value in vars(fixtures).items() if isinstance(value, type(fixtures.precision))}
    assert set(re.findall(r"^### `(\w+)`$", pages["fixtures.md"], re.MULTILINE)) == {*plugins, "gpu_benchmark"}


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf8").split()) <= 900


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for needed in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(needed, reason="the site needs mkdocs-material and mkdocstrings: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("").as_posix()
        folder = name.removesuffix("README").rstrip("/") if name.endswith("README") else name
        assert (site / folder / "index.html").is_file(), name


def test_the_site_shows_arguments_and_files_and_leads_out_of_docs(site: Path) -> None:
    api = (site / "reference" / "api" / "index.html").read_text(encoding="utf8")
    assert 'id="precheck.measure"' in api
    assert "Parameters:" in api
    assert "Raises:" in api
    tutorial = (site / "tutorial" / "index.html").read_text(encoding="utf8")
    assert '<span class="filename">tests/test_gpt.py</span>' in tutorial
    home = (site / "index.html").read_text(encoding="utf8")
    assert "https://github.com/precheck-dev/pytest-precheck/blob/main/suites/zoo/README.md" in home
    assert 'href="../' not in home


@pytest.mark.skipif(browser.executable() is None, reason="no Chromium here (chromium, google-chrome)")
@pytest.mark.parametrize("width", [420, 1280])
def test_no_line_of_code_is_cut_off(site: Path, tmp_path: Path, width: int) -> None:
    page = browser.Browser(tmp_path)
    try:
        page.open(site / "rules" / "accumulated-drift" / "index.html", width=width)
        wide = page.value("[...document.querySelectorAll('pre > code')].map((code) => code.scrollWidth > code.clientWidth)")
        assert page.value("document.documentElement.scrollWidth") <= width
    finally:
        page.close()
    assert wide
    assert not any(wide)


@pytest.mark.parametrize("name", sorted(name for name in precheck.__all__ if inspect.isfunction(inspect.unwrap(getattr(precheck, name)))))
def test_a_public_function_says_what_each_argument_is_and_what_it_raises(name: str) -> None:
    function = inspect.unwrap(getattr(precheck, name))
    said = inspect.getdoc(function) or ""
    assert "\nArgs:\n" in said
    assert "\nRaises:\n" in said
    nothing = inspect.signature(function).return_annotation in (None, "None")
    assert nothing or "float32, where" in said or "\nReturns:\n" in said or "\nYields:\n" in said
    silent = [each for each in inspect.signature(function).parameters if not re.search(rf"\b{each}\b", said)]
    assert not silent or "Arguments are those of `measure`" in said, silent
