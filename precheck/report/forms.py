"""The forms of a session's report, by the names that `--drift-report` and `python -m precheck report` know them by.

A form turns a session (precheck/report/session.py, docs/report.md) into text. Each is loaded when it is used.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from precheck.files import replace

if TYPE_CHECKING:
    from precheck.report.session import Session


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """One way to write a session down. `writer` is "module:function", a function of the session that returns the text.

    `comparer` is one of two sessions, earlier and later.
    """

    name: str
    writer: str
    comparer: str = ""
    ops: bool = True  # whether it shows every op, so that checks that pass are diagnosed too
    needs: str = ""  # a module that comes with the extra `extra`
    extra: str = ""

    @property
    def missing(self) -> str:
        """What to type before the form can be used; "" if it can be."""
        if not self.needs or importlib.util.find_spec(self.needs):
            return ""
        return f"{self.name} needs {self.needs}; install it with: pip install 'pytest-precheck[{self.extra}]'"

    def text(self, session: Session) -> str:
        return cast(str, _loaded(self.writer)(session))

    def changes(self, before: Session, now: Session) -> str:
        return cast(str, _loaded(self.comparer)(before, now))


def _loaded(place: str) -> Callable[..., object]:
    module, _, function = place.partition(":")
    return cast("Callable[..., object]", getattr(importlib.import_module(module), function))


FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("term", "precheck.report.terminal:session_text", "precheck.report.changes:term"),
        Form("json", "precheck.report.session:text", "precheck.report.changes:plain"),
        Form("markdown", "precheck.report.markdown:text", "precheck.report.changes:markdown"),
        Form("sarif", "precheck.report.sarif:text", "precheck.report.sarif:compared", ops=False),
        Form("html", "precheck.report.html:page", "precheck.report.comparison:page", needs="jinja2", extra="report"),
    )
}


def write(form: Form, session: Session, path: Path) -> None:
    """Writes the text to `path`, whole or not at all; folders on the way are made. Raises OSError.

    Added to what is there, where `path` is the summary of a step on GitHub, which the step's other commands add to as well.
    """
    save(form.text(session), path)


def save(text: str, path: Path) -> None:
    """As `write`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary and path == Path(summary):
        with path.open("a", encoding="utf8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
        return
    replace(path, text.encode("utf8", "backslashreplace"))
