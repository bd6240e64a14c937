"""The command line: `python -m precheck golden show FILE`, `… golden diff A B`, `… report A.json [B.json]`, `… rules`,
`… kernel CANDIDATE REFERENCE`, `… record FILE MODEL --inputs INPUTS`, `… watch SCRIPT`.

To let git show goldens in a diff:
    git config diff.precheck.textconv "python -m precheck golden show"
    echo "*.safetensors diff=precheck" >> .gitattributes
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from precheck import __version__, commands, watched_script
from precheck.commands import Trouble
from precheck.findings import RULES
from precheck.report.changes import WORSE, between
from precheck.report.forms import ALIASES, FORMS, named, save
from precheck.report.session import SessionError, load
from precheck.words import printable

if TYPE_CHECKING:
    from precheck.goldens.file import Golden

SAME, DIFFERENT, TROUBLE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Exit status 0: shown, written, or no difference; 1: goldens differ, or the later report is worse; 2: a file cannot be
    read or written."""
    options = _parser().parse_args(arguments)
    try:
        status, text = options.run(options)
    except (Trouble, SessionError) as error:
        print(printable(str(error)), file=sys.stderr)
        return TROUBLE
    if text:
        _print(text)
    return int(status)


def _golden(path: Path) -> Golden:
    """Reads a golden. numpy and safetensors are imported here, since help and reports must work without them."""
    try:
        from precheck.goldens.file import GoldenError, read
    except ModuleNotFoundError as error:
        raise Trouble(f"goldens are read with {error.name}, which is not installed here; install it with: pip install {error.name}") from None
    try:
        return read(path)
    except GoldenError as error:
        raise Trouble(str(error)) from None


def _golden_show_command(options: argparse.Namespace) -> tuple[int, str]:
    """Shows goldens under their names without folders, since git puts each version of a file into a temporary folder."""
    goldens = [(file, _golden(file)) for file in options.file]
    from precheck.goldens.show import show

    return SAME, "\n\n".join(show(golden, file.name).removesuffix("\n") for file, golden in goldens)


def _golden_diff_command(options: argparse.Namespace) -> tuple[int, str]:
    before, now = _golden(options.a), _golden(options.b)
    from precheck.goldens.show import circumstances, describe, difference

    changes = difference(before, now)
    aside = circumstances(before, now)
    lines = [describe(changes) if changes else printable(f"no tensor of {options.b} moved from {options.a}")]
    if aside:
        lines += ["recorded otherwise:", describe(aside)]
    return DIFFERENT if changes else SAME, "\n".join(lines)


def _report_command(options: argparse.Namespace) -> tuple[int, str]:
    """Shows one report, or what changed between two. The status is DIFFERENT if the later one has new errors or lost verdicts."""
    form = named(options.format)
    assert form is not None  # the parser accepts no other name
    if form.missing:
        raise Trouble(form.missing)
    if options.b and not form.comparer:
        comparing = ", ".join(each.name for each in FORMS.values() if each.comparer)
        raise Trouble(f"--format={form.name} shows one report, and there are two; what changed is told as {comparing}")
    before, now = load(options.a), load(options.b) if options.b else None
    worse = now is not None and any(change.kind in WORSE for change in between(before, now))
    status = DIFFERENT if worse else SAME
    text = form.text(before) if now is None else form.changes(before, now)
    if options.out is None:
        return status, text.removesuffix("\n")
    try:
        save(text, options.out)
    except OSError as error:
        raise Trouble(f"{options.out} cannot be written: {error.strerror}") from None
    return status, ""


def _rules_command(options: argparse.Namespace) -> tuple[int, str]:
    if options.write is None and not options.messages:
        return SAME, "\n".join(f"{rule.name}: {rule.meaning}" for rule in RULES.values())
    if options.messages:
        from precheck.report import messages

        pages = {messages.NAME: messages.page()}
    else:
        from precheck.report import rules  # imported here since it needs torch

        pages = rules.pages()
    if options.write is None:
        return SAME, "".join(pages.values()).removesuffix("\n")
    try:
        _spare(options.write, pages)
        for name, page in pages.items():
            save(page, options.write / name)
    except OSError as error:
        raise Trouble(f"{options.write} cannot be written: {error.strerror}") from None
    return SAME, ""


def _spare(folder: Path, pages: Mapping[str, str]) -> None:
    """Raises Trouble if a page would replace a file that this command has not made, such as the README.md of a folder of other pages."""
    for name, page in pages.items():
        path, made = folder / name, page.partition("\n")[0]
        if path.is_file() and not path.read_text(encoding="utf8", errors="replace").startswith(made):
            raise Trouble(f"{path} is a file of yours, which a page would replace; name another folder, as in --write docs/rules, or remove it")


def _print(text: str) -> None:
    """Prints text in any terminal encoding. A closed pipe, as after `| head`, is no error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise the interpreter reports an error when it flushes at exit


def _parser() -> argparse.ArgumentParser:
    does = "Look at goldens, reports and rules, judge kernels, record runs, and watch scripts."
    parser = argparse.ArgumentParser(prog="python -m precheck", description=does)
    parser.add_argument("--version", action="version", version=f"precheck {__version__}")
    what = parser.add_subparsers(dest="what", required=True, metavar="{golden,kernel,record,report,rules,watch}")
    golden = _command(what, "golden", "show goldens, or the differences of two", _GOLDEN)
    acts = golden.add_subparsers(dest="act", required=True, metavar="{show,diff}")
    shown = _command(acts, "show", "print where goldens come from and what they hold; fit for git's textconv", _GOLDEN)
    shown.add_argument("file", type=Path, nargs="+", metavar="FILE", help="a golden, or several")
    shown.set_defaults(run=_golden_show_command)
    diff = _command(acts, "diff", "print what moved from A to B, worst first", _GOLDEN)
    diff.add_argument("a", type=Path, metavar="A", help="the earlier golden")
    diff.add_argument("b", type=Path, metavar="B", help="the later golden")
    diff.set_defaults(run=_golden_diff_command)
    commands.add_kernel(_command, what)
    commands.add_record(_command, what)
    _add_report(what)
    listed = _command(what, "rules", "list the rules, or write a page of each", "Exit status: 0 done, 2 not writable.")
    listed.add_argument("--messages", action="store_true", help="print every message of every rule as a table, or write it with --write")
    listed.add_argument("--write", type=Path, metavar="FOLDER", help="write the pages into this folder")
    listed.set_defaults(run=_rules_command)
    watched_script.add_watch(_command, what)
    return parser


def _add_report(what: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    ends = "Exit status: 0 shown, 1 B has an error that A has not, or no verdict where A has one, 2 not readable or not writable."
    report = _command(what, "report", "show a report, or what changed from one report to the next, worst first", ends)
    report.add_argument("a", type=Path, metavar="A.json", help="a file of pytest --drift-report=json:PATH, or of Report.to_json()")
    report.add_argument("b", type=Path, nargs="?", metavar="B.json", help="a later one")
    report.add_argument("--format", choices=(*FORMS, *ALIASES), default="term", help="the form (default: term); md is markdown")
    report.add_argument("-o", "--out", type=Path, metavar="OUT", help="write to this file (default: print)")
    report.set_defaults(run=_report_command)


_GOLDEN = "Exit status: 0 same or shown, 1 different, 2 not readable."


def _command(parsers: argparse._SubParsersAction[argparse.ArgumentParser], name: str, does: str, ends: str) -> argparse.ArgumentParser:
    return parsers.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.", epilog=ends)


if __name__ == "__main__":
    sys.exit(main())
