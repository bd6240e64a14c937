"""The commands that run code named MODULE:NAME: `python -m precheck kernel module:candidate module:reference` runs `compare_kernels` without pytest,
`python -m precheck record FILE module:model --inputs module:inputs` runs `record` without Python code.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_NAMES = ("inputs", "example_inputs", "get_inputs")
_ENDS = "Exit status: 0 right up to rounding, 1 wrong, 2 nothing could be judged."


class Trouble(Exception):
    """Why a command cannot be run, in one line."""


def add_kernel(command: Callable[..., argparse.ArgumentParser], what: Any) -> None:
    """Adds this command to the parser."""
    parser = command(what, "kernel", "judge a kernel beside the function that it should compute", _ENDS)
    parser.add_argument("candidate", metavar="MODULE:CANDIDATE", help="the kernel; MODULE is importable, or a file that ends in .py")
    parser.add_argument("reference", metavar="MODULE:REFERENCE", help="the function that it should compute")
    where = f"{', '.join(_NAMES)} in the reference's module, then the candidate's"
    parser.add_argument("--inputs", metavar="MODULE:INPUTS", help=f"arguments of one call, or a function that makes them (default: {where})")
    parser.add_argument("--precision", help="as --precision of pytest (default: inputs as they are)")
    compared = "whether to compare gradients, double: second ones too (default: yes)"
    parser.add_argument("--gradients", choices=("yes", "no", "double"), default="yes", help=compared)
    parser.add_argument("--sizes", help="names for the dimensions of each tensor, if two that have one size may differ: 'rows columns; columns'")
    parser.add_argument("--budget", type=float, help="seconds of processor time for the trials (default: 20; with --trials no limit)")
    parser.add_argument("--trials", type=int, help="the most trials, of which the same are made on each machine (default: no limit)")
    parser.add_argument("--speed", action="store_true", default=None, help="time both sides on a CPU too (default: on a device alone)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--save", type=Path, metavar="TEST.py", help="write a failing input as a test into this file")
    parser.set_defaults(run=run_kernel)


def run_kernel(options: argparse.Namespace) -> tuple[int, str]:
    """Runs the command. Returns the exit status and the text to print."""
    candidate, reference = imported(options.candidate), imported(options.reference)
    from precheck.comparing_kernels import compare_kernels
    from precheck.observe.job import InputError
    from precheck.observe.listeners import telling
    from precheck.precisions import PrecisionError

    gradients: Any = {"yes": True, "no": False, "double": "double"}[options.gradients]
    sizes = [part.split() for part in options.sizes.split(";")] if options.sizes else None
    try:
        with telling(_say):
            report = compare_kernels(candidate, reference, _inputs(options), precision=options.precision, gradients=gradients, sizes=sizes,
                                     budget=options.budget, trials=options.trials, speed=options.speed)  # fmt: skip
    except (InputError, PrecisionError) as error:
        raise Trouble(str(error)) from None
    if options.save and "code" in report.facts:
        _save(options, report.facts["code"])
    status = 1 if report.errors else 2 if report.verdict == "not judged" else 0
    return status, json.dumps(json.loads(report.to_json())) if options.json else _text(report)


def _text(report: Any) -> str:
    speed, lines = report.facts.get("speed"), [report.summary()]
    if speed is not None:
        times = f"candidate {speed['candidate_ms']:.3g} ms, reference {speed['reference_ms']:.3g} ms: {speed['times_as_fast']:.3g} times as fast"
        error = f"with at most {speed['r']:.3g} of the error that correct implementations reach"
        lines.append(f"{times}, {error} ({speed['passes']}, {speed['device']})")
    lines += [f"not looked at: {what}: {why}" for what, why in report.facts.get("not_looked_at", {}).items()]
    return "\n".join(lines)


def _say(words: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{words}", end="", file=sys.stderr, flush=True)


def imported(name: str) -> Any:
    """Imports the object that MODULE:NAME names. MODULE may be a file."""
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise Trouble(f"{name!r} names nothing; write module:function, or file.py:function")
    path = Path(place)
    if place.endswith(".py"):
        if not path.is_file():
            raise Trouble(f"{place} is no file; write the path of a Python file before the colon")
        sys.path.insert(0, str(path.resolve().parent))
        place = path.stem
    elif "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise Trouble(f"{place} cannot be imported: {error}; write an importable module, or a path that ends in .py") from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise Trouble(f"{place} has no {attribute!r}; it has {', '.join(sorted(each for each in vars(found) if not each.startswith('_'))[:12])}")
        found = getattr(found, part)
    return found


def _inputs(options: argparse.Namespace) -> Any:
    if options.inputs:
        return _data(options.inputs)
    for side in (options.reference, options.candidate):
        module = side.rpartition(":")[0]
        for name in _NAMES:
            with contextlib.suppress(Trouble):
                return _data(f"{module}:{name}")
    raise Trouble(f"no inputs: define {_NAMES[0]} = (tensor, …) in the reference's module, or pass --inputs module:name")


def _save(options: argparse.Namespace, code: str) -> None:
    """Writes a test that fails until the candidate is right on the failing inputs."""
    from precheck.files import create

    (module, _, candidate), (other, _, reference) = options.candidate.rpartition(":"), options.reference.rpartition(":")
    lines = [f"from {Path(module).stem if module.endswith('.py') else module} import {candidate} as candidate",
             f"from {Path(other).stem if other.endswith('.py') else other} import {reference} as reference", code, "", "",
             "def test_kernel(check_kernel):", "    check_kernel(candidate, reference, inputs)", ""]  # fmt: skip
    try:
        create(options.save, "\n".join(lines).encode())
    except OSError as error:
        raise Trouble(f"{options.save} cannot be written: {error.strerror}") from None


_RECORD_ENDS = """Exit status: 0 written, 2 not. precheck.compare(model, FILE, inputs) compares a model with it, in any process and with any version
of torch."""


def add_record(command: Callable[..., argparse.ArgumentParser], what: Any) -> None:
    """Adds this command to the parser."""
    does = "run a model and write the results to a file, which precheck.compare can take in place of the second model"
    parser = command(what, "record", does, _RECORD_ENDS)
    parser.add_argument("file", type=Path, metavar="FILE.safetensors", help="where to write")
    parser.add_argument("model", metavar="MODULE:MODEL", help="a module or a function of tensors; with () at its end, what that function returns")
    given = "the model's inputs: a tensor, a tuple or a dict, or a function that makes them"
    parser.add_argument("--inputs", required=True, metavar="MODULE:INPUTS", help=given)
    parser.add_argument("--loss", metavar="MODULE:LOSS", help="a function of the output that returns a scalar; its gradients are recorded too")
    parser.add_argument("--optimizer", metavar="MODULE:OPTIMIZER", help="makes an optimizer of parameters; how far weights move is recorded too")
    parser.add_argument("--steps", type=int, default=1, help="steps of the optimizer (default: 1)")
    parser.add_argument("--precision", default="32-true", help="as --precision of pytest (default: 32-true)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers (default: 0)")
    parser.set_defaults(run=run_record)


def run_record(options: argparse.Namespace) -> tuple[int, str]:
    """Runs the command. Returns the exit status and the text to print."""
    model, inputs = _made(options.model), _data(options.inputs)
    loss, optimizer = (None if name is None else imported(name) for name in (options.loss, options.optimizer))
    from precheck.observe.job import InputError
    from precheck.precisions import PrecisionError
    from precheck.recording import record

    try:
        record(
            options.file, model, inputs, precision=options.precision, loss=loss, optimizer=optimizer, steps=options.steps, seed=options.seed
        )
    except (InputError, PrecisionError) as error:
        raise Trouble(str(error)) from None
    except OSError as error:
        raise Trouble(f"{options.file} cannot be written: {error.strerror or error}") from None
    return 0, f"{options.file}: compare with precheck.compare(model, {str(options.file)!r}, inputs)"


def _data(name: str) -> Any:
    """The inputs that MODULE:NAME names, or what a function of that name makes, with or without () at its end."""
    given = _made(name) if name.endswith("()") else imported(name)
    return given() if callable(given) and not hasattr(given, "shape") else given


def _made(name: str) -> Any:
    """The object that MODULE:NAME names, or its result where the name ends in ()."""
    value = imported(name.removesuffix("()"))
    if not name.endswith("()"):
        if inspect.isfunction(value) and not inspect.signature(value).parameters:
            raise Trouble(f"{name} is a function without arguments; write '{name}()' for what it returns")
        return value
    if not callable(value):
        raise Trouble(f"{name}: {name.removesuffix('()')} is a {type(value).__name__}, which cannot be called; leave () out")
    return value()
