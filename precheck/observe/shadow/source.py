"""Where in the user's code an op comes from: file and line, and for a backward op those of the forward op it differentiates.

Autograd makes an op's node just before the op is dispatched, so that the newest sequence number then is that node's; in a
backward pass the node that runs tells its own. No anomaly mode is needed.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch

PRECHECK = str(Path(__file__).resolve().parent.parent)
TORCH = str(Path(torch.__file__).resolve().parent)
_PASSED_OVER = ("<", str(Path(contextlib.__file__)))
REMEMBERED = 1 << 17
"""Forward ops whose lines are remembered for the backward pass: more than any one step of a model of 10 000 layers has."""

_Place = tuple[str, str]  # line, module


class Frames:
    """Tells the user's frames from torch's and precheck's; the answer for a file is remembered."""

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}

    def kind(self, filename: str) -> str:
        known = self.kinds.get(filename)
        if known is None:
            known = self.kinds[filename] = _kind(filename)
        return known

    def line(self, depth: int, inside: bool = False) -> tuple[str, bool, bool]:
        """The deepest user line, whether autograd's engine lies between it and here, and whether a checkpoint runs it again.

        The last is asked for `inside` a backward pass only, where it is looked for beyond the line.
        """
        frame: Any = sys._getframe(depth)
        line, engine, recomputed = "", False, False
        while frame is not None:
            code = frame.f_code
            kind = self.kind(code.co_filename)
            if kind == "user":
                line = line or f"{code.co_filename}:{frame.f_lineno}"
                if engine or recomputed or not inside:
                    break
            elif kind == "engine" and code.co_name == "_engine_run_backward":
                if line:
                    break  # user code that the engine runs
                engine = not recomputed
            elif kind == "checkpoint" and not engine:
                recomputed = True
                if line:
                    break
            frame = frame.f_back
        return line, engine, recomputed


def _kind(filename: str) -> str:
    if filename.startswith(_PASSED_OVER):
        return "passed over"
    path = str(Path(filename).resolve())
    if path.startswith(TORCH):
        if path.endswith(str(Path("autograd") / "graph.py")):
            return "engine"
        return "checkpoint" if path.endswith(str(Path("utils") / "checkpoint.py")) else "torch"
    return "precheck" if path.startswith(PRECHECK) else "user"


class Lines:
    """The place of the op being dispatched."""

    def __init__(self) -> None:
        self.frames = Frames()
        self.forward: dict[int, _Place] = {}

    def locate(self, module: str, depth: int = 3) -> tuple[bool, bool, str, str]:
        """Whether a backward pass runs, whether the op is derived (autograd's own, not user code run by it), line, module path."""
        node = torch._C._current_autograd_node()
        line, engine, recomputed = self.frames.line(depth, node is not None)
        if node is None or recomputed:
            newest = torch._C._autograd._get_sequence_nr() - 1
            if newest not in self.forward:
                self.forward[newest] = (line, module)
                if len(self.forward) > REMEMBERED:
                    self._forget()
            return False, False, line, module
        if engine or not line:  # on a GPU the engine's threads have no frames of the user's beneath them
            known = self.forward.get(node._sequence_nr())
            if known is not None:
                return True, True, known[0] or line, known[1]
        return True, engine or not line, line, module

    def _forget(self) -> None:
        for number in list(self.forward)[: REMEMBERED // 2]:
            del self.forward[number]


def shortened(line: str) -> str:
    """The line as people name it: relative to the working directory where it lies in it."""
    path, _, number = line.rpartition(":")
    if not path:
        return line
    try:
        return f"{Path(path).relative_to(Path.cwd())}:{number}"
    except ValueError:
        return line
