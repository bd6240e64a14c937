"""docs/tutorial.md, carried out from its first file to its last command: what it shows is what a reader gets."""

from __future__ import annotations

import re
from pathlib import Path

import browser
import pictures
import pytest
from carried import carried_out
from named import asked, extras
from walkthrough import blocks

pytestmark = pytest.mark.usefixtures("forked_python")
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "tutorial.md").read_text(encoding="utf8")
SHOWN = re.findall(r"!\[[^\]]+\]\((pictures/\S+)\)", PAGE)
LARGEST = 150 * 1024  # bytes of a picture: a page that is read on a train


@pytest.mark.usefixtures("everything_imported")
def test_every_command_says_what_the_page_shows(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a browser, the pictures are of this run too: as large as they would be drawn now, since a panel that came or went makes another
    height. Fonts of another machine may wrap a line."""
    page = carried_out(DOCS / "tutorial.md", pytester, monkeypatch, trials=12)
    assert len(page.spoken) == PAGE.count("\n$ ") > 5
    assert [one.status for one in page.spoken].count(1) == 1
    if browser.executable() is None:
        return
    for picture in pictures.draw(pytester.path / pictures.REPORT, pytester.path / "pictures", pytester.path / "profile"):
        (_, now), (_, then) = pictures.size(picture), pictures.size(DOCS / "pictures" / picture.name)
        assert abs(now - then) <= 0.1 * then, f"docs/pictures/{picture.name} is stale: type python suites/docs/pictures.py"


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

