"""A bug that shipped somewhere, as code small enough to watch, with its mended twin."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

MARK = re.compile(r"# culprit: ([\w, -]+)$")


@dataclasses.dataclass(frozen=True)
class Bug:
    """`bug` and `fixed` return what the code's user gets: a tensor, or a tuple of them, comparable with each other.

    Lines at fault end in `# culprit: <name>`. Where nothing was found in a public tracker, `link` is empty and the docstring of
    the code says what it stands for.
    """

    name: str
    link: str  # "pytorch/vision#3371", an issue or a pull request on GitHub
    rules: tuple[str, ...]  # what the first finding may be called; the first of them is what it is called today
    op: str  # "aten.mul.Tensor"; empty where the finding names none; "one or another" where the processor decides which of them rounds more
    bug: Callable[[], Any]
    fixed: Callable[[], Any]
    phase: str = "forward"
    module: str = ""
    step: int = 1
    severity: str = "error"
    kernel: bool = False  # whether the harm hangs on how this build of torch carries an op out
    mechanism: str = ""  # a row of the scoreboard; the MECHANISM of its file, or the file's name, where nothing is said
    harm: float | None = None  # what the result is off the twin's at least, relative; None is 2 %, 0 where the harm is no number
    raises: type[Exception] | None = None  # what torch, or the code itself, makes of the bug
    precision: str = ""  # what watch() is told that the block runs in; float32 alone is followed where it is told so
    measured: Callable[[bool], dict[str, Any]] | None = None  # given "fixed?": arguments for precheck.measure, as keywords
    expected_miss: str = ""  # why watch() finds no error; the tests fail when it does
    measure_misses: str = ""  # the same of measure()
    wrong_line: str = ""  # why the first finding is on a line that is not at fault; the tests fail when it is on one that is
    twin_accused: str = ""  # why watch() finds an error in the mended twin; the tests fail when it does not
    note: str = ""  # what may be said against the entry

    @property
    def rule(self) -> str:
        return self.rules[0]


def culprits(path: Path) -> dict[str, set[int]]:
    """The lines of a file that are at fault, by the name of the bug."""
    found: dict[str, set[int]] = {}
    for number, line in enumerate(path.read_text(encoding="utf8").splitlines(), 1):
        mark = MARK.search(line)
        for name in mark.group(1).split(", ") if mark else ():
            found.setdefault(name, set()).add(number)
    return found


def tensors(result: Any) -> Iterator[torch.Tensor]:
    """The tensors of a result, detached, in float64."""
    if isinstance(result, torch.Tensor):
        yield result.detach().double()
    elif result is not None:
        for item in result:
            yield from tensors(item)


def harm(name: str, result: Any, twin: Any) -> float:
    """How far a bug's result is off its twin's: max |a - b| / max |b|, the worst tensor; Inf where only the twin's is finite."""
    worst = 0.0
    for mine, theirs in zip(tensors(result), tensors(twin), strict=True):
        assert bool(torch.isfinite(theirs).all()), f"{name}: the twin's result is not finite"
        if not bool(torch.isfinite(mine).all()):
            return float("inf")
        worst = max(worst, float((mine - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)))
    return worst


def on_one_thread(code: Callable[[], Any]) -> Any:
    """What `code` gives on one thread, where a float32 sum has one order: which of two like errors is the first hangs on it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return code()
    finally:
        torch.set_num_threads(threads)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers of that seed, without a trace in torch's own random state."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def uniform(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def wider(x: torch.Tensor) -> torch.Tensor:
    """`x` in float32, or as it is where it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
