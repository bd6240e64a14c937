"""The pictures of docs/tutorial.md: parts of the report that its failing command writes, as headless Chromium draws them, in light colours.

python suites/docs/pictures.py      # carries the tutorial out, up to that command, and writes docs/pictures
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

from walkthrough import blocks, carry_out

sys.path.append(str(Path(__file__).parents[1] / "report"))

from browser import Browser

DOCS = Path(__file__).parents[2] / "docs"
REPORT = "drift.html"
WIDTH, TALL = 1000, 6000  # pixels; so tall that nothing scrolls, since a bar at the side would shift what was measured
PARTS = {"finding": "#findings", "run": "#run", "loss": "#losses"}
STILL = "document.querySelectorAll('.help, .chosen').forEach((part) => { part.style.display = 'none'; })"
"""What is said of the mouse and the keys has no place in a picture."""
MARGIN = 6
BESIDE = 44
"""Pixels of `WIDTH` that the page leaves free at its sides."""


def draw(report: Path, folder: Path, profile: Path) -> list[Path]:
    """One PNG for each of `PARTS`."""
    folder.mkdir(parents=True, exist_ok=True)
    browser = Browser(profile)
    try:
        browser.open(report, width=WIDTH, height=TALL)
        browser.value(STILL)
        browser.settle()
        drawn = [_part(browser, folder / f"{name}.png", part) for name, part in PARTS.items()]
        assert not browser.complaints, browser.complaints
        return drawn
    finally:
        browser.close()


def _part(browser: Browser, path: Path, selector: str) -> Path:
    left, top, width, height = browser.value(
        f"(({{ x, y, width, height }}) => [x, y, width, height])(document.querySelector({selector!r}).getBoundingClientRect())"
    )
    clip = {"x": left - MARGIN, "y": top - MARGIN, "width": width + 2 * MARGIN, "height": height + 2 * MARGIN, "scale": 1}
    path.write_bytes(base64.b64decode(browser.call("Page.captureScreenshot", clip=clip)["data"]))
    return path


def size(picture: Path) -> tuple[int, int]:
    """Width and height of a PNG, in pixels."""
    header = picture.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n", f"{picture} is no PNG"
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "project")
        for block in blocks((DOCS / "tutorial.md").read_text(encoding="utf8")):
            carry_out(block, project)
            if (project / REPORT).exists():
                break
        for picture in draw(project / REPORT, DOCS / "pictures", Path(folder, "profile")):
            sys.stdout.write(f"{picture.relative_to(DOCS.parent)}: {picture.stat().st_size // 1024} KiB\n")


if __name__ == "__main__":
    main()
