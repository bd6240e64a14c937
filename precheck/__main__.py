"""`python -m precheck golden show FILE` and `python -m precheck golden diff A B`.

As git's way to show goldens in a diff:
    git config diff.precheck.textconv "python -m precheck golden show"
    echo "*.safetensors diff=precheck" >> .gitattributes
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from precheck.goldens.file import GoldenError, read
from precheck.goldens.show import circumstances, describe, difference, show

SAME, DIFFERENT, TROUBLE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: shown, or no difference; 1: the goldens differ; 2: a golden cannot be read."""
    options = _parser().parse_args(arguments)
    try:
        status, text = _shown(options.file) if options.act == "show" else _compared(options.a, options.b)
    except GoldenError as error:
        print(error, file=sys.stderr)
        return TROUBLE
    _print(text)
    return status


def _shown(file: Path) -> tuple[int, str]:
    """Under its name without a folder, as git puts one version of a file into a folder of its own."""
    return SAME, show(read(file), file.name).removesuffix("\n")


def _compared(a: Path, b: Path) -> tuple[int, str]:
    before, now = read(a), read(b)
    changes = difference(before, now)
    aside = circumstances(before, now)
    lines = [describe(changes) if changes else f"no tensor of {b} moved from {a}"]
    if aside:
        lines += ["recorded otherwise:", describe(aside)]
    return DIFFERENT if changes else SAME, "\n".join(lines)


def _print(text: str) -> None:
    """Whatever the terminal's encoding, and also where `| head` has left."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter complains when it flushes at its end


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m precheck", description="Look at golden files.")
    what = parser.add_subparsers(dest="what", required=True, metavar="golden")
    golden = _command(what, "golden", "show goldens, or what tells two apart")
    acts = golden.add_subparsers(dest="act", required=True, metavar="{show,diff}")
    shown = _command(acts, "show", "print where a golden comes from and what it holds; fit for git's textconv")
    shown.add_argument("file", type=Path, metavar="FILE", help="a golden")
    diff = _command(acts, "diff", "print what moved from A to B, worst first")
    diff.add_argument("a", type=Path, metavar="A", help="the golden that was")
    diff.add_argument("b", type=Path, metavar="B", help="the golden that is")
    return parser


def _command(parsers: argparse._SubParsersAction[argparse.ArgumentParser], name: str, does: str) -> argparse.ArgumentParser:
    sentence = f"{does[0].upper()}{does[1:]}."
    return parsers.add_parser(name, help=does, description=sentence, epilog="Exit status: 0 same or shown, 1 different, 2 not readable.")


if __name__ == "__main__":
    sys.exit(main())
