"""What is published: the wheel and the sdist hold what they have to, and the page on the package index leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from named import ROOT, links

pytest.importorskip("hatchling", reason="needs hatchling")
pytest.importorskip("hatch_fancy_pypi_readme", reason="needs hatch-fancy-pypi-readme")
HOME = "https://github.com/precheck-dev/pytest-precheck"
RAW = "https://raw.githubusercontent.com/precheck-dev/pytest-precheck/main/"
"""Where the index finds pictures: a page that shows a file is no picture."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> dict[str, bytes]:
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def metadata(wheel: dict[str, bytes]) -> Message[str, str]:
    (name,) = (name for name in wheel if name.endswith(".dist-info/METADATA"))
    return message_from_string(wheel[name].decode("utf8"))


def test_the_wheel_has_all_of_the_package_and_nothing_else(wheel: dict[str, bytes]) -> None:
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "precheck").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {"precheck/py.typed", "precheck/report/report.schema.json", "precheck/report/page/page.css"} <= package
    assert {name for name in wheel if ".dist-info/" not in name} == package


def test_the_sdist_has_what_its_tests_are_run_with(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    wanted = ["README.md", "LICENSE", "conftest.py", "constraints.txt", "tox.ini", "pyproject.toml", ".ci/run", "mkdocs.yml", "CHANGELOG.md"]
    for folder in ("docs", "suites", "golden", "precheck", "examples"):
        wanted += [each.relative_to(ROOT).as_posix() for each in (ROOT / folder).rglob("*") if each.is_file() and "__pycache__" not in each.parts]
    assert not {name for name in wanted if not re.search(r"/\.|\.egg-info", name)} - held


def test_no_link_of_the_index_s_page_is_relative_and_each_leads_to_a_file(metadata: Message[str, str]) -> None:
    page: Any = metadata.get_payload()
    found, own = links(page), links((ROOT / "README.md").read_text(encoding="utf8"))
    assert len(found) == len(own) > 10
    relative = [link for link in found if not re.match(r"https://|#", link)]
    assert not relative
    inside = [link.removeprefix(f"{HOME}/blob/main/").partition("#")[0] for link in found if link.startswith(f"{HOME}/blob/main/")]
    pictures = [link.removeprefix(RAW) for link in found if link.startswith(RAW)]
    assert inside
    assert pictures
    assert not [path for path in inside + pictures if not (ROOT / path).exists()]
    assert not [path for path in inside if path.endswith((".png", ".svg"))]


def test_the_page_is_the_readme_but_for_its_links(metadata: Message[str, str]) -> None:
    page: Any = metadata.get_payload()
    assert page.replace(f"{HOME}/blob/main/", "").replace(RAW, "").strip() == (ROOT / "README.md").read_text(encoding="utf8").strip()
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_the_index_s_links_are_all_of_one_home(metadata: Message[str, str]) -> None:
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert urls.keys() == {"Homepage", "Documentation", "Issues", "Changelog"}
    assert all(url.startswith(HOME) for url in urls.values())


def test_every_extra_adds_something(metadata: Message[str, str]) -> None:
    """A requirement without conditions is installed with any extra or none."""
    needs = metadata.get_all("Requires-Dist", [])
    plain = {re.split(r"[^\w-]", need)[0] for need in needs if "extra ==" not in need}
    assert {"torch", "pytest", "pytest-benchmark", "numpy", "hypothesis", "safetensors"} == plain
    for extra in metadata.get_all("Provides-Extra", []):
        added = {re.split(r"[^\w-]", need)[0] for need in needs if re.search(rf"extra == ['\"]{extra}['\"]", need)}
        assert added - plain, f"[{extra}] adds nothing"
