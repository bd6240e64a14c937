"""The command `python -m precheck watch train.py`: runs a script or a module under `watch`, as Python would run it, and prints the report.

Nothing in the script has to change. With `--steps 5` it is ended after the fifth step of its optimizer.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precheck.commands import Trouble
from precheck.interpreter import roomy

if TYPE_CHECKING:
    from precheck.findings import Report

_ENDS = """Exit status: 0 no errors, 1 errors, 2 the script cannot be read; another one is the script's own. Under torchrun:
torchrun --nproc-per-node 2 -m precheck watch train.py"""


_INTERRUPTED = 130
"""The exit status that a shell gives a program which Ctrl-C has ended. The report of what had run until then is printed."""


class _StepsDone(BaseException):
    """Ends the script. Programs catch exceptions, but not this."""


def add_watch(command: Callable[..., argparse.ArgumentParser], what: Any) -> None:
    """Adds this command to the parser."""
    parser = command(what, "watch", "run a training script, compare each op in low precision with float32, and print the report", _ENDS)
    parser.add_argument("--steps", type=int, metavar="N", help="end the script after N steps of its optimizer (default: it runs to its end)")
    parser.add_argument("--precision", help="apply this precision to the whole script, such as bf16-mixed (default: the script's own)")
    parser.add_argument("-o", "--out", type=Path, metavar="OUT.json", help="also write the report, for python -m precheck report")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT names a module, as after python -m")
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="arguments of the script")
    parser.set_defaults(run=run_watch)


def run_watch(options: argparse.Namespace) -> tuple[int, str]:
    """Runs the command. Returns the exit status and the text to print."""
    if options.steps is not None and options.steps < 1:
        raise Trouble(f"--steps={options.steps}: write a whole number from 1")
    if not options.module and not Path(options.script).is_file():
        raise Trouble(f"{options.script} is no file; write the path of a Python file, or -m and a module's name")
    if options.module and not _is_module(options.script):
        raise Trouble(f"there is no module {options.script}; write the name that python -m takes, in the folder where python finds it")
    from precheck.observe.job import InputError
    from precheck.precisions import PrecisionError, resolve
    from precheck.watching import check_arguments

    try:
        check_arguments(None, None if options.precision is None else resolve(options.precision))
    except (InputError, PrecisionError) as error:
        raise Trouble(str(error)) from None
    report, status = _watched(options)
    text, status = report.summary(), status or int(bool(report.errors))
    if options.out is not None:
        from precheck.report.forms import save

        try:
            save(report.to_json(), options.out)
        except OSError as error:  # the script may have run for hours: what was seen is printed all the same
            return 2, f"{text}\n{options.out} cannot be written: {error.strerror}"
    return status, text


def _is_module(name: str) -> bool:
    """Whether Python finds the first part of a module's name. The rest is the program's own to import."""
    first = name.partition(".")[0]
    return first in sys.builtin_module_names or PathFinder.find_spec(first, [str(Path.cwd()), *sys.path]) is not None


@roomy
def _watched(options: argparse.Namespace) -> tuple[Report, int]:
    """The report, and the exit status that the script alone would have."""
    from precheck.watching import watch

    status = 0
    with _as_main(options):
        try:
            with watch(precision=options.precision) as report, _ended_after(options.steps):
                _run(options)
        except _StepsDone:
            status = 0  # as many steps as were asked for
        except KeyboardInterrupt:
            status = _INTERRUPTED
        except SystemExit as ended:
            status = _status(ended.code)
        except Exception:
            traceback.print_exc()
            status = 1
    return report, status


def _run(options: argparse.Namespace) -> None:
    if options.module:
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(options.script, run_name="__main__")


@contextlib.contextmanager
def _as_main(options: argparse.Namespace) -> Iterator[None]:
    """Python's arguments and path are the script's."""
    arguments, path = sys.argv, list(sys.path)
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = str(Path.cwd() if options.module else Path(options.script).resolve().parent)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = arguments, path


@contextlib.contextmanager
def _ended_after(steps: int | None) -> Iterator[None]:
    """Ends the block after that many steps of any one optimizer."""
    if steps is None:
        yield
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook

    counts: collections.Counter[int] = collections.Counter()

    def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        counts[id(optimizer)] += 1
        if counts[id(optimizer)] >= steps:
            raise _StepsDone

    hook = register_optimizer_step_post_hook(stepped)
    try:
        yield
    finally:
        hook.remove()


def _status(code: Any) -> int:
    """The exit status that Python gives a SystemExit. It prints a text and exits with 1."""
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1
