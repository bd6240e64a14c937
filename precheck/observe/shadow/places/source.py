"""Finds the source line of an op, and the user's own line behind it. A backward op gets the line of the forward op that it differentiates.

An op's line is the deepest line on the stack outside torch and precheck, and may be in a framework. The user's own line is the deepest one outside
installed packages. Autograd makes an op's node just before the op is dispatched, so the newest sequence number is that node's. In a backward
pass the running node has the same number. Anomaly mode is not needed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import precheck
from precheck.observe.models.conversion import rounded
from precheck.observe.shadow.places.call_sites import CallSite, CallSites
from precheck.observe.state import copied
from precheck.torch_internals import CONVERSION, backward_node, graph_task, next_sequence_number, sequence_number
from precheck.torch_support import autocast
from precheck.words import in_package

if TYPE_CHECKING:
    from types import FrameType

PRECHECK = str(Path(precheck.__file__).resolve().parent) + os.sep
TORCH = str(Path(torch.__file__).resolve().parent) + os.sep  # torchvision lies beside it
OPTIMIZERS = str(Path(TORCH) / "optim") + os.sep
RUNNER = str(Path("observe") / "training.py")
"""The file of precheck that runs the user's model. The code that called it is not part of the run."""
AUTOCAST = autocast.__file__
INSTALLED = tuple({str(Path(path).resolve()) for name in ("purelib", "platlib", "stdlib", "platstdlib") if (path := sysconfig.get_path(name))})
_NAMELESS = frozenset({"<lambda>", "<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"})
_PROMPTS = ("<stdin>", "<python-input-", "<ipython-input-")
"""What Python and IPython call code that somebody types. Other names in angle brackets are of generated code."""
_PASSED_OVER = ("<", str(Path(contextlib.__file__)))
REMEMBERED = 1 << 17
"""Forward ops whose lines are remembered for the backward pass: more than one step of a model of 10 000 layers has."""
_CONVERTING = {CONVERSION: "held", rounded.__code__: "held", copied.__code__: "given"}
"""Code that converts what a model holds, and what a measurement is given."""
CONVERSIONS = {id(code): word for code, word in _CONVERTING.items()}
"""The same by id, since hashing code takes two microseconds."""
_POLICY_CASTS = {
    "_cast_forward_inputs": "cast_forward_inputs", "_root_cast_forward_input": "cast_root_forward_inputs", "_cast_output_dtype": "output_dtype",
    "_post_forward": "output_dtype",
}  # fmt: skip
"""Functions of FSDP and FSDP2 that cast, and the setting of the mixed-precision policy that asks for it."""


class Located(NamedTuple):
    """An op's place. `derived`: it is autograd's own op, not user code that autograd runs. `caller`: the user's own line, "" if unknown. `site`: what
    called the function that this line is in."""

    backward: bool
    derived: bool
    line: str
    module: str
    caller: str
    site: CallSite | None = None


class Function(NamedTuple):
    """A function of the user's: its first line and its name."""

    start: str
    name: str


class Frames:
    """Distinguishes frames of the user, of packages, of torch and of precheck, by the kinds of their files."""

    def __init__(self) -> None:
        self.users: dict[str, bool] = {"": False}  # by line, whether it is the user's own
        self.functions: dict[str, Function] = {}  # by line of the user's
        self.sites = CallSites(KINDS)
        self.site: CallSite | None = None  # that of the line which was found last
        self.engine = (0, -1, "")  # the frame that last called autograd's engine, the backward pass, and the line that called it
        self.within = False  # whether an optimizer step is running
        self.step: str | None = None  # the line that called it, once an op of torch's own optimizer has been located

    def line(self, depth: int, inside: bool = False) -> tuple[str, bool, bool]:
        """Returns the deepest line of the user or a package, whether autograd's engine called this op, and whether a checkpoint recomputes it.

        Checkpoints are looked for only `inside` a backward pass, also above the line.
        """
        frame: Any = sys._getframe(depth)
        line, engine, recomputed, kinds, self.site = "", False, False, KINDS, None
        called = stepping = None
        while frame is not None:
            code = frame.f_code
            kind = kinds[code.co_filename]
            if kind == "user" or kind == "installed":
                line = line or self._line(frame)
                if engine or recomputed or not inside:
                    break
            elif kind == "optimizer" and self.within and not inside and stepping is None:
                if self.step is not None:
                    return self.step, False, False
                stepping = frame
            elif kind == "engine" and code.co_name == "_engine_run_backward":
                if line:
                    break  # user code that the engine runs
                engine = not recomputed
                if engine and called is None:  # all ops of one backward pass have this frame
                    called = (id(frame), graph_task())
                    if called == self.engine[:2]:
                        return self.engine[2], True, False
            elif kind == "checkpoint" and not engine:
                recomputed = True
                if line:
                    break
            frame = frame.f_back
        if called is not None and not recomputed:
            self.engine = (*called, line)
        elif stepping is not None:
            self.step = line
        return line, engine, recomputed

    def steps(self, within: bool) -> None:
        """An optimizer's step begins or has ended."""
        self.within, self.step = within, None

    def caller(self, depth: int) -> tuple[str, bool]:
        """The user's own deepest line, "" if there is none in this run, and whether autograd's engine lies between it and the op."""
        frame: Any = sys._getframe(depth)
        engine = False
        while frame is not None:
            code = frame.f_code
            kind = KINDS[code.co_filename]
            if kind == "user":
                return self._line(frame), engine
            if kind == "runner":
                break
            engine |= kind == "engine" and code.co_name == "_engine_run_backward"
            frame = frame.f_back
        return "", engine

    def _line(self, frame: FrameType) -> str:
        """The frame's line. A comprehension or a lambda belongs to the function that it stands in."""
        line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        self.site = self.sites.of(frame, line)
        if line not in self.functions:
            code = frame.f_code
            while code.co_name in _NAMELESS and frame.f_back is not None and frame.f_back.f_code.co_filename == code.co_filename:
                frame = frame.f_back
                code = frame.f_code
            self.functions[line] = Function(f"{code.co_filename}:{code.co_firstlineno}", code.co_name)
        return line

    def own(self, line: str, depth: int) -> tuple[str, bool]:
        """The same as `caller`, for an op at `line`. It is `line` itself if that is the user's own."""
        known = self.users.get(line)
        if known is None:
            known = self.users[line] = KINDS[line.rpartition(":")[0]] == "user"
        return (line, False) if known else self.caller(depth + 1)

    def casting(self, depth: int) -> tuple[str, str]:
        """Returns "held" if a cast converts what a module holds, as `to(dtype)` does, "given" if it converts a measurement's inputs, else "". Also
        the setting of FSDP's mixed-precision policy by which FSDP makes the cast, "" if it does not."""
        converts = policy = ""
        for frame in self._below_line(sys._getframe(depth)):
            converts = converts or CONVERSIONS.get(id(frame.f_code), "")
            policy = _POLICY_CASTS.get(frame.f_code.co_name, policy)  # the outermost: that of a root casts by the function of any module
        return converts, policy

    def instruction(self, depth: int) -> int:
        """The bytecode offset of the frame of the deepest line."""
        frame: Any = sys._getframe(depth)
        while frame is not None and KINDS[frame.f_code.co_filename] not in ("user", "installed"):
            frame = frame.f_back
        return -1 if frame is None else int(frame.f_lasti)

    def widening(self, depth: int) -> bool:
        """Whether a cast is autocast's own, made for an op that it runs in float32."""
        return any(frame.f_code.co_filename == AUTOCAST for frame in self._below_line(sys._getframe(depth)))

    def _below_line(self, frame: Any) -> Iterator[FrameType]:
        """The frames of torch and precheck between an op and the deepest line."""
        while frame is not None and KINDS[frame.f_code.co_filename] not in ("user", "installed"):
            yield frame
            frame = frame.f_back


def _kind(filename: str) -> str:
    """The kind of a file."""
    if filename.startswith(_PROMPTS):
        return "user"
    if filename.startswith(_PASSED_OVER):
        return "passed over"
    path = str(Path(filename).resolve())
    if path.startswith(TORCH):
        if path.endswith(str(Path("autograd") / "graph.py")):
            return "engine"
        if path.startswith(OPTIMIZERS):
            return "optimizer"
        return "checkpoint" if path.endswith(str(Path("utils") / "checkpoint.py")) else "torch"
    if path.startswith(PRECHECK):
        return "runner" if path.endswith(RUNNER) else "precheck"
    return "installed" if path.startswith(INSTALLED) or not {"site-packages", "dist-packages"}.isdisjoint(Path(path).parts) else "user"


class _Kinds(dict[str, str]):
    """The kinds of files, found once in the process: resolving a path takes as long as watching ten ops."""

    def __missing__(self, filename: str) -> str:
        kind = self[filename] = _kind(filename)
        return kind


KINDS = _Kinds()


class Lines:
    """Locates the op that is being dispatched."""

    def __init__(self) -> None:
        self.frames = Frames()
        self.forward: dict[int, Located] = {}
        self.newest = 0  # newest node when forward ops were last forgotten

    def locate(self, module: str, depth: int) -> Located:
        """The place of an op that runs in the module with that path."""
        node = backward_node()
        line, engine, recomputed = self.frames.line(depth, node is not None)
        caller, beyond = self.frames.own(line, depth)
        if node is None or recomputed:
            newest, here = next_sequence_number() - 1, Located(False, False, line, module, caller, self.frames.site)
            if newest not in self.forward:
                self.forward[newest] = here
                if len(self.forward) > REMEMBERED:
                    self._forget()
            return here
        known = self.forward.get(sequence_number(node))
        if known is not None and (beyond or not caller):  # if the engine runs a library's line, the user's line is the forward op's
            caller = known.caller
        if known is not None and (engine or not line):  # on a GPU the engine's threads have no frames of the user
            return Located(True, True, known.line or line, known.module, known.caller or caller, known.site)
        return Located(True, engine or not line, line, module, caller, self.frames.site)

    def forget(self) -> None:
        """Forgets forward ops from before the last call of this: a backward pass follows soon after its forward pass."""
        self.forward = {number: place for number, place in self.forward.items() if number > self.newest}
        self.newest = next_sequence_number() - 1

    def _forget(self) -> None:
        for number in list(self.forward)[: REMEMBERED // 2]:
            del self.forward[number]


def installed(line: str) -> bool:
    """Whether a line, with its number, is in an installed package."""
    return bool(line) and KINDS[line.rpartition(":")[0]] == "installed"


def packaged(line: str) -> str:
    """A line of an installed package with its import path: "keras/src/backend/torch/numpy.py:156"."""
    inside = in_package(line)
    return inside if inside != line else shortened(line)


def shortened(line: str) -> str:
    """A line with its path relative to the working directory, if it lies in there."""
    here = f"{os.getcwd()}{os.sep}"  # noqa: PTH109  # called for each row of a table
    return line[len(here) :] if line.startswith(here) else line
