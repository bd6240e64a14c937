"""The command `python -m precheck record FILE module:model --inputs module:inputs`: runs `record` without Python code."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from precheck.kernel_command import Trouble, imported

_ENDS = "Exit status: 0 written, 2 not. precheck.compare(model, FILE, inputs) compares a model with it, in any process and with any version of torch."


def add(command: Callable[..., argparse.ArgumentParser], what: Any) -> None:
    """Adds this command to the parser."""
    does = "run a model and write the results to a file, which precheck.compare can take in place of the second model"
    parser = command(what, "record", does, _ENDS)
    parser.add_argument("file", type=Path, metavar="FILE.safetensors", help="where to write")
    parser.add_argument("model", metavar="MODULE:MODEL", help="a module or a function of tensors; with () at its end, what that function returns")
    given = "the model's inputs: a tensor, a tuple or a dict; with () at its end, what that function returns"
    parser.add_argument("--inputs", required=True, metavar="MODULE:INPUTS", help=given)
    parser.add_argument("--loss", metavar="MODULE:LOSS", help="a function of the output that returns a scalar; its gradients are recorded too")
    parser.add_argument("--optimizer", metavar="MODULE:OPTIMIZER", help="makes an optimizer of parameters; how far weights move is recorded too")
    parser.add_argument("--steps", type=int, default=1, help="steps of the optimizer (default: 1)")
    parser.add_argument("--precision", default="32-true", help="as --precision of pytest (default: 32-true)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers (default: 0)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> tuple[int, str]:
    """Runs the command. Returns the exit status and the text to print."""
    model, inputs = _made(options.model), _made(options.inputs)
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


def _made(name: str) -> Any:
    """The object that MODULE:NAME names, or its result where the name ends in ()."""
    value = imported(name.removesuffix("()"))
    if not name.endswith("()"):
        return value
    if not callable(value):
        raise Trouble(f"{name}: {name.removesuffix('()')} is a {type(value).__name__}, which cannot be called; leave () out")
    return value()
