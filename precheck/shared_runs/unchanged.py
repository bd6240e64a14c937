"""Tells whether a check that has passed would pass again, without judging it: if the same code gives the same numbers, a judge sees the same.

What must be the same: the content of every file whose code runs, the bits of every tensor at a boundary of the low run, weights, buffers, inputs,
the golden, the settings, and the versions of all packages. The low run is made again for this. No op of it is run in float32.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from precheck import __version__, interpreter, interrupts
from precheck.observe.containers import tensors
from precheck.observe.decisions.log import DecisionLog
from precheck.observe.job import Job
from precheck.observe.listeners import doing
from precheck.observe.recording.digest import Digest, Numbers, numbers
from precheck.observe.run import run
from precheck.observe.setting import low
from precheck.precisions import Precision

_SWITCHES = ("TORCH", "PYTORCH", "CUBLAS", "ONEDNN", "MKL", "OMP")
"""Beginnings of the names of environment variables that choose kernels."""

Settings = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Passed:
    """What a check that has passed was made of."""

    given: str  # `given` at that time
    numbers: str  # digest of its low run
    files: dict[str, str]  # digest of each file whose code ran, by path; a watched run also runs some for precheck
    draws: bool  # whether its low run recorded random draws

    def again(self, job: Job, precision: Precision, now: str) -> bool:
        """Whether the check would pass again. `now` is what `given` says today. Makes a low run if nothing else differs."""
        if now != self.given or any(content(path) != digest for path, digest in self.files.items()):
            return False
        found = low_numbers(job, precision, records=DecisionLog() if self.draws else None)
        return found is not None and found.digest == self.numbers and found.files <= self.files.keys()


def passed(seen: Numbers, given: str) -> Passed:
    """What is to be known of a check whose watched run gave these numbers."""
    return Passed(given, seen.digest, {path: content(path) for path in sorted(seen.files)}, seen.draws)


@interrupts.held()
@interpreter.spared
def low_numbers(job: Job, precision: Precision, *, records: DecisionLog | None = None) -> Numbers | None:
    """Makes a low run and gives its numbers. None if it raises, as the check itself will, or if they are not known.

    Recording costs time for every op, so decisions are recorded only where random draws were: dropout then has the factor that it had.
    """
    digest = Digest()
    try:
        with doing("comparing with the run that passed"):
            trace = run(job, dataclasses.replace(low(precision, records=records), witness=digest, unmeasured=True, files=True))
    except Exception:
        return None
    return numbers(digest, trace, draws=records is not None)


def given(job: Job, precision: Precision, golden: Path | None, settings: Settings) -> str:
    """A digest of all that is given to a check: weights, buffers and inputs, the golden's bytes, the settings, and versions and switches below.
    "" if a tensor is of a kind whose bits are not read, such as a sparse one.
    """
    held = Digest()
    with torch.no_grad():
        for name, tensor in (*job.model.named_parameters(remove_duplicate=False), *job.model.named_buffers(), *tensors(job.inputs)):
            held.add(name, tensor)
    state = held.finish()
    if not state:
        return ""
    recorded = hashlib.sha256(golden.read_bytes()).hexdigest() if golden is not None and golden.exists() else ""
    asked = {**settings, "precision": repr(precision), "steps": job.steps, "seed": job.seed, "training": job.model.training}
    return hashlib.sha256(json.dumps([state, recorded, asked, _below()], sort_keys=True, default=repr).encode()).hexdigest()


def _below() -> list[Any]:
    """Versions and switches that numbers and verdicts depend on."""
    devices = [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    switches = [
        torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(), torch.get_default_dtype(),
        torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32,
    ]  # fmt: skip
    chosen = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_SWITCHES)}
    kernels = torch.version.git_version, torch.backends.cpu.get_cpu_capability(), platform.machine()
    return [__version__, *_installed(), sys.version, torch.__version__, *kernels, devices, switches, chosen]


@functools.cache
def _installed() -> tuple[str, list[str]]:
    """A digest of precheck's own code, which decides on verdicts, and the versions of all installed packages."""
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest(), sorted(f"{each.name} {each.version}" for each in importlib.metadata.distributions())


_contents: dict[str, tuple[tuple[int, int], str]] = {}


def content(path: str) -> str:
    """A digest of a file's bytes. "" for code without a file, such as Python's own or a method that a dataclass makes: it changes only if
    a file does."""
    try:
        stat = Path(path).stat()
        state = stat.st_mtime_ns, stat.st_size
        if _contents.get(path, (None,))[0] != state:
            _contents[path] = state, hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""
    return _contents[path][1]
