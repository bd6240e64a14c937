"""The install commands of the README resolve from the plain package index, as on a machine that has nothing of ours.

uv resolves them for the oldest Python and the newest. PRECHECK_SLOW=1 asks for those between too, and asks pip, which takes minutes for the same
question; CI installs with it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from urllib.error import URLError

import pytest
from resolving import ASKED, INDEX, OLDEST, PYTHONS, README, ROOT, SLOW, Answers

_SECONDS = 5.0  # to wait for the index before it counts as out of reach


@pytest.fixture(scope="module")
def index() -> str:
    try:  # not find_spec("pip"): from there on setuptools, which torch imports, fails in this process on Python 3.10 and 3.11
        importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("this environment has no pip")
    try:
        with urllib.request.urlopen(f"{INDEX}pip/", timeout=_SECONDS):
            return INDEX
    except (URLError, OSError) as error:
        pytest.skip(f"{INDEX} cannot be reached: {error}")


def resolved(arguments: list[str], index: str) -> dict[str, str]:
    """The versions that pip would install into an empty environment, from `index` alone."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PIP_") or name == "PIP_CERT"}
    asked = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", "--index-url", index, *arguments]
    done = subprocess.run(asked, cwd=ROOT, env=plain | {"PIP_CONFIG_FILE": os.devnull}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {each["metadata"]["name"].lower(): each["metadata"]["version"] for each in json.loads(done.stdout)["install"]}


def by_name(text: str) -> list[str]:
    """Commands and lists of requirements that take precheck from the package index."""
    asked = re.findall(r"(?:pip install|deps =)[^`\n|]*", text)
    return [each for each in asked if re.search(r"(?<!/)\bpytest-precheck\b(?!(\[\w+\])? @ git\+)", each)]


UNRELEASED = "not on the package index yet" in (ROOT / "docs/install.md").read_text(encoding="utf8")


@pytest.mark.skipif(not UNRELEASED, reason="precheck is on the package index")
def test_nothing_is_installed_from_the_index_before_the_first_release() -> None:
    """Only two pages name that command, and say when it will work. The others, and messages, give one that works today."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "precheck").rglob("*.py")]
    named = {page.relative_to(ROOT).as_posix(): found for page in pages if (found := by_name(page.read_text(encoding="utf8")))}
    assert named == {"README.md": ["pip install pytest-precheck"], "docs/install.md": ["pip install pytest-precheck"]}
    assert all("first release" in (ROOT / name).read_text(encoding="utf8") for name in named)


def test_commands_by_name_are_told_from_those_by_address() -> None:
    assert by_name("pip install -e . 'pytest-precheck[report]'\ndeps = pytest-precheck")
    assert not by_name("pip install 'pytest-precheck[report] @ git+https://github.com/precheck-dev/pytest-precheck'")
    assert not by_name("pip install 'pytest-precheck @ git+https://github.com/precheck-dev/pytest-precheck'\nthe package pytest-precheck")


def test_the_readme_installs_the_project_twice() -> None:
    assert len(README) == 2


def test_the_project_says_which_pythons_it_runs_on() -> None:
    assert PYTHONS == ["3.10", "3.11", "3.12", "3.13", "3.14"]


@pytest.mark.skipif(not SLOW, reason="pip takes a minute for each; PRECHECK_SLOW=1 asks it")
@pytest.mark.parametrize("command", README)
def test_the_readme_installs_from_the_plain_index(command: str, index: str) -> None:
    versions = resolved(shlex.split(command), index)
    assert versions["torch"] == "2.13.0"  # what the goldens were recorded with


@pytest.mark.parametrize("python", ASKED)
def test_the_readme_s_packages_have_wheels_for_a_python(python: str, index: str, answers: Answers) -> None:
    """With all that either command asks for: what the versions of the larger one satisfy, they satisfy of the smaller."""
    pytest.importorskip("uv")
    versions = answers.versions("readme", python)
    assert versions["torch"] == "2.13.0"
    assert {"transformers", "peft", "lightning", "keras", "torchao"} <= versions.keys()


@pytest.mark.parametrize("python", OLDEST)
def test_a_users_own_project_needs_no_constraints(python: str, index: str, answers: Answers) -> None:
    """On the oldest Python, for which the newest torch is not the newest of all."""
    pytest.importorskip("uv")
    versions = answers.versions("own", python)
    assert "transformers" not in versions
    newest = (2, 14) if python == "3.10" else (2, 15)  # the last one for Python 3.10
    assert tuple(map(int, versions["torch"].split(".")[:2])) >= newest


@pytest.mark.skipif(not SLOW, reason="pip takes a minute; PRECHECK_SLOW=1 asks it")
def test_pip_takes_the_newest_torch_for_a_users_own_project(index: str) -> None:
    versions = resolved(["."], index)
    assert "transformers" not in versions
    newest = (2, 15) if sys.version_info >= (3, 11) else (2, 14)
    assert tuple(map(int, versions["torch"].split(".")[:2])) >= newest
