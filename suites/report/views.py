"""What is to be seen of the page in a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from browser import Browser

from precheck.report.html import page
from precheck.report.session import Session


def shown(browser: Browser, session: Session, folder: Path, **view: Any) -> Browser:
    path = folder / "drift.html"
    path.write_text(page(session), encoding="utf8")
    browser.open(path, **view)
    return browser


def text(browser: Browser, selector: str) -> str:
    return str(browser.value(f"document.querySelector({json.dumps(selector)}).innerText"))


def texts(browser: Browser, selector: str) -> list[str]:
    return list(browser.value(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.innerText)"))


def column(browser: Browser, title: str) -> list[str]:
    """The cells in view of a column of the table."""
    place = [head.rstrip(" ↓↑") for head in texts(browser, "#grid th")].index(title) + 1
    return texts(browser, f"#grid tbody tr[data-index] td:nth-child({place})")


def painted(browser: Browser, name: str, canvas: str = "run-canvas") -> int:
    """How many pixels of a chart have a colour of the page's style."""
    return int(
        browser.value(
            f"""(() => {{
              const canvas = document.querySelector("#{canvas}");
              const probe = document.body.appendChild(document.createElement("canvas")).getContext("2d");
              canvas.style.color = "var(--{name})";
              probe.fillStyle = getComputedStyle(canvas).color;
              canvas.style.color = "";
              probe.fillRect(0, 0, 1, 1);
              const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
              probe.canvas.remove();
              const found = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
              let count = 0;
              for (let at = 0; at < found.length; at += 4) {{
                count += found[at] === r && found[at + 1] === g && found[at + 2] === b && found[at + 3] === 255;
              }}
              return count;
            }})()"""
        )
    )


def focus(browser: Browser, selector: str) -> None:
    browser.value(f"document.querySelector({json.dumps(selector)}).focus()")
