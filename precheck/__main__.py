"""`python -m precheck golden show FILE` and `python -m precheck golden diff A B`.

As git's way to show goldens in a diff:
    git config diff.precheck.textconv "python -m precheck golden show"
    echo "*.safetensors diff=precheck" >> .gitattributes
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from precheck.goldens.file import GoldenError, read
from precheck.goldens.show import describe, difference, show


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: shown, or no difference; 1: the goldens differ; 2: a golden cannot be read."""
    options = _parser().parse_args(arguments)
    try:
        if options.act == "show":
            print(show(read(options.file), str(options.file)), end="")
            return 0
        changes = difference(read(options.a), read(options.b))
    except GoldenError as error:
        print(error, file=sys.stderr)
        return 2
    print(describe(changes) if changes else f"no tensor of {options.b} moved from {options.a}")
    return 1 if changes else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m precheck", description="Look at golden files.")
    golden = parser.add_subparsers(dest="what", required=True).add_parser("golden", help="show goldens, or what tells two apart")
    acts = golden.add_subparsers(dest="act", required=True)
    shown = acts.add_parser("show", help="print where a golden comes from and what it holds (fit for git's textconv)")
    shown.add_argument("file", type=Path)
    diff = acts.add_parser("diff", help="print what moved from A to B, worst first")
    diff.add_argument("a", type=Path)
    diff.add_argument("b", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
