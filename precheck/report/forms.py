"""The table of report forms (`FORMS`) by the names of `--drift-report` and `python -m precheck report`, and the writing of files.

A form turns a session (precheck/report/session.py, docs/report.md) into text. Its module is imported when it is used.
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
    """One form of report. `writer` is "module:function"; the function takes a session and returns the text.

    `comparer` is the same for a function of two sessions, the earlier and the later.
    """

    name: str
    writer: str
    comparer: str = ""
    ops: bool = True  # whether it shows every op, so that passing checks need a diagnosis too
    needs: str = ""  # a module, and the package that has it

    @property
    def missing(self) -> str:
        """What the user has to install before the form can be used. "" if nothing."""
        if not self.needs or importlib.util.find_spec(self.needs):
            return ""
        return f"{self.name} needs {self.needs}; install it with: pip install {self.needs}"

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
        Form("html", "precheck.report.html:page", "precheck.report.html:compared", needs="jinja2"),
    )
}
ALIASES = {"md": "markdown"}
"""Other names that users give to a form, as the endings of files are."""


def named(name: str) -> Form | None:
    """The form of that name or alias. None if there is none."""
    return FORMS.get(ALIASES.get(name, name))


def write(form: Form, session: Session, path: Path) -> None:
    """Writes the report to `path`, in full or not at all. Makes missing folders. Raises OSError.

    If `path` is the summary of a GitHub step, the text is appended, since other commands of the step write there too.
    """
    save(form.text(session), path)


def save(text: str, path: Path) -> None:
    """Writes a text to `path` as `write` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary and path == Path(summary):
        with path.open("a", encoding="utf8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
        return
    replace(path, text.encode("utf8", "backslashreplace"))
