"""docs/tutorial.md, carried out from its first file to its last command: what it shows is what a reader gets."""

from __future__ import annotations

import re
from pathlib import Path

import browser
import pictures
import pytest
from named import asked, extras
from walkthrough import Spoken, blocks, carry_out

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "tutorial.md").read_text(encoding="utf8")
SHOWN = re.findall(r"!\[[^\]]+\]\((pictures/\S+)\)", PAGE)
LARGEST = 150 * 1024  # bytes of a picture: a page that is read on a train


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("project")


@pytest.fixture(scope="module")
def spoken(project: Path) -> list[Spoken]:
    return [one for block in blocks(PAGE) for one in carry_out(block, project)]


def test_every_command_says_what_the_page_shows(spoken: list[Spoken]) -> None:
    assert len(spoken) == PAGE.count("\n$ ") > 5
    differences = [difference for one in spoken if (difference := one.difference())]
    assert not differences, "\n\n".join(differences)


def test_a_command_fails_where_the_page_says_so(spoken: list[Spoken]) -> None:
    assert [one.status for one in spoken] == [int("FAILED" in one.expected) for one in spoken]
    assert [one.status for one in spoken].count(1) == 1


def test_what_is_installed_can_be() -> None:
    """The only block that is not carried out, for it needs a network."""
    (install,) = [block.text for block in blocks(PAGE) if block.kind == "sh"]
    assert asked(install) == {"report"} <= extras()
    assert (ROOT / re.findall(r"-c (\S+)", install)[0]).is_file()


@pytest.mark.parametrize("name", SHOWN)
def test_pictures_are_there_and_small(name: str) -> None:
    assert pictures.size(DOCS / name)[0] == pictures.WIDTH - pictures.BESIDE + 2 * pictures.MARGIN
    assert (DOCS / name).stat().st_size < LARGEST


def test_each_picture_is_shown() -> None:
    assert sorted(SHOWN) == sorted(f"pictures/{path.name}" for path in (DOCS / "pictures").glob("*.png"))
    assert {Path(name).stem for name in SHOWN} == set(pictures.PARTS)


@pytest.mark.skipif(browser.executable() is None, reason="needs a Chromium on the path: " + ", ".join(browser.NAMES))
def test_pictures_are_of_this_run(spoken: list[Spoken], project: Path, tmp_path: Path) -> None:
    """As large as they would be drawn now: a panel that came or went makes another height. Fonts of another machine may wrap a line."""
    drawn = pictures.draw(project / pictures.REPORT, tmp_path / "pictures", tmp_path / "profile")
    for picture in drawn:
        (_, now), (_, then) = pictures.size(picture), pictures.size(DOCS / "pictures" / picture.name)
        assert abs(now - then) <= 0.1 * then, f"docs/pictures/{picture.name} is stale: type python suites/docs/pictures.py"
