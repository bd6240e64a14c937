"""Records goldens and refreshes them: makes the runs, compares with the file, and writes it if asked to.

A golden is the float32 reference of a test. It has noise floors for both placements of rounding (at autocast's ops, or at every stored result), so
that one file serves all precisions. Goldens are written and deleted on request only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from precheck import interpreter, interrupts
from precheck.analysis.noise_floor import drift
from precheck.analysis.noise_floor.noise_sites import noise_for
from precheck.goldens.file import Golden, GoldenMissing, GoldenRecord, read, write
from precheck.goldens.show import MEANINGFUL, describe, difference
from precheck.observe.containers import tensors
from precheck.observe.decisions.log import DecisionLog
from precheck.observe.job import Job
from precheck.observe.listeners import doing
from precheck.observe.recording.reduce import reduced
from precheck.observe.recording.sketch import distance
from precheck.observe.records import Record, Trace
from precheck.observe.run import run
from precheck.observe.setting import low, reference
from precheck.precisions import PRECISIONS, Placement, Precision
from precheck.rules.golden_stale import rule as staleness
from precheck.torch_support.dense_parts import parts
from precheck.words import writable

Which = Literal["missing", "changed", "all"]
Status = Literal["written", "changed", "unchanged", "kept"]

NOISE_RUNS = 2
_PLACEMENTS: dict[Placement, str] = {"mixed": "bf16-mixed", "true": "bf16-true"}
_FLOAT32 = PRECISIONS["32-true"]


@dataclasses.dataclass(frozen=True, slots=True)
class Refreshed:
    """The result of a refresh for one file. `written`: it is new. `changed`: it has new values. `kept`: it was not recorded again."""

    path: Path
    status: Status
    lines: tuple[str, ...] = ()  # the changes, worst first


@interrupts.held()
@interpreter.spared
def refresh(path: Path, job: Job, which: Which = "changed") -> Refreshed:
    """Records the golden of `job` at `path` if `which` says so. Raises GoldenError if it cannot be written or is not finite.

    `missing` keeps all existing files. `changed` rewrites files that cannot be read, or whose values moved by more than float32 differs between
    machines. `all` rewrites all files whose bytes differ.
    """
    if which == "missing" and path.exists():
        return Refreshed(path, "kept")
    before = _before(path)
    golden = record(job)
    if isinstance(before, Golden):
        if which == "changed" and not (outdated(before, golden) and outdated(before, golden, job)):
            return Refreshed(path, "unchanged")
        changes = describe(difference(before, golden))
        return Refreshed(path, "changed" if write(path, golden) else "unchanged", tuple(changes.splitlines()))
    write(path, golden)
    return Refreshed(path, "changed" if before else "written", (before,) if before else ())


def outdated(before: Golden, now: Golden, job: Job | None = None) -> bool:
    """Whether `before` is out of date: `now` belongs to another test, or a check would find that it moved. With a `job`, float64 is used too, as in a
    check.

    The relative distance is no criterion: a result of cancellation, such as the gradient of a key's bias, differs on every machine.
    """
    old, new = ({each.record.key: each.record for each in golden.records} for golden in (before, now))
    if old.keys() != new.keys() or any(_form(old[key]) != _form(each) for key, each in new.items()):
        return True
    if any(before.provenance.get(name) != now.provenance.get(name) for name in MEANINGFUL):
        return True
    given, seen = ([{key: each for key, each in kept.items() if (each.kind == "input") is wanted} for kept in (old, new)] for wanted in (True, False))
    spreads, today = {each.record.key: each.spread for each in before.records}, Trace(records=seen[1])
    rows = staleness.compare(Trace(records=seen[0]), spreads, today, errors=errors(_like(now, job), today) if job else None)
    return bool(staleness.inputs(*given) or staleness.out_of_date(rows, Trace(records=seen[0]), Trace(records=seen[1]), weights_differ=False))


def _like(golden: Golden, job: Job) -> Job:
    """The job with the same tensors sampled as when the golden was recorded."""
    return dataclasses.replace(job, sampled=frozenset(each.record.key for each in golden.records if each.record.sampled))


def _form(record: Record) -> tuple[object, ...]:
    """The properties of a record that rounding does not change."""
    return record.shape, record.dtype, record.sampled, record.nan, record.posinf, record.neginf


def _before(path: Path) -> Golden | str:
    """The golden in the file, or a text that says why it cannot be read, or "" if there is no file."""
    from precheck.goldens.file import GoldenError

    try:
        return read(path)
    except GoldenMissing:
        return ""
    except GoldenError as error:
        return str(error).splitlines()[0]


def record(job: Job) -> Golden:
    """Makes the golden of `job`: its float32 reference, its noise floors and its provenance."""
    with doing("recording the golden"):
        job = thinned(job)
        trace = float32(job, functions=True)
        floors = {placement: _floors(job, PRECISIONS[name], place * NOISE_RUNS) for place, (placement, name) in enumerate(_PLACEMENTS.items())}
    records = [
        GoldenRecord(record, {placement: found.get(key, math.nan) for placement, found in floors.items()})
        for key, record in trace.records.items()
    ]
    return Golden([*inputs_of(job), *records], provenance(job, trace))


def thinned(job: Job) -> Job:
    """The job with the tensors marked whose sketch may be made from a sample. Other tensors and inputs are sketched in full."""
    return dataclasses.replace(job, sampled=frozenset(run(job, dataclasses.replace(low(_FLOAT32), finds_sample_sizes=True, functions=True)).even))


def float32(job: Job, *, functions: bool = False) -> Trace:
    """Runs the reference for goldens: all in float32, also where the model casts to low formats, with float32's own decisions.

    `functions`: also records what the user's functions return.
    """
    log = DecisionLog()
    run(job, low(_FLOAT32, records=log))
    return run(job, reference(torch.float32, follows=log, functions=functions))


def errors(job: Job, trace: Trace) -> dict[str, float]:
    """For each record key, the distance of `trace` (made by `float32`) from float64 with the same decisions. Empty if the model does not run in
    float64."""
    log = DecisionLog()
    run(job, low(_FLOAT32, records=log))
    try:
        exact = run(job, reference(torch.float64, follows=log, functions=True))
    except Exception:
        return {}
    both = ((key, record, exact.records.get(key)) for key, record in trace.records.items())
    return {key: distance(record.sketch, other.sketch) for key, record, other in both if other is not None and other.shape == record.shape}


def _floors(job: Job, precision: Precision, done: int) -> dict[str, float]:
    """For each record key, the spread that noise of one unit roundoff at the roundings of `precision` causes. `done`: noise runs already made.

    Empty if the model does not run under the precision, for lack of a kernel; checks then measure the spread themselves.
    """
    log = DecisionLog()
    try:
        seen = run(job, low(precision, records=log))
    except Exception:
        return {}
    plain = run(job, reference(torch.float32, precision, follows=log, functions=True))
    noises = []
    for number in range(NOISE_RUNS):
        with doing(f"noise run {done + number + 1} of {NOISE_RUNS * len(_PLACEMENTS)}"):
            noise = noise_for(job.model, seen, log, precision, seed=number + 1)
            noises.append(run(job, reference(torch.float32, precision, follows=log, disturbance=noise, functions=True)))
    return {key: spread / precision.roundoff for key, spread in drift.spreads(plain, noises).items()}


def inputs_of(job: Job) -> Iterator[GoldenRecord]:
    """The inputs as records, so that a check can tell changed inputs from drift."""
    for path, tensor in tensors(job.inputs):
        for part, dense in parts(tensor).items():
            facts: dict[str, Any] = reduced(dense)
            yield GoldenRecord(Record(kind="input", name=f"input{path}{part and '.'}{part}", step=1, **facts), {})


def provenance(job: Job, trace: Trace) -> dict[str, str | int | float | bool]:
    """The provenance of a golden: versions, device, settings of the job, digests."""
    from precheck import __version__

    return {
        "precheck": __version__,
        "torch": torch.__version__,
        "device": job.device if job.device == "cpu" else torch.cuda.get_device_name(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "tf32": False,
        "seed": job.seed,
        "steps": job.steps,
        "loss": job.loss is not None,
        "optimizer": trace.optimizer,
        "weights": digest(dict(job.model.state_dict())),
        "inputs": digest(dict(tensors(job.inputs))),
    }


def digest(named: Mapping[str, Any]) -> str:
    """A hash of the names, dtypes, shapes and bytes of the tensors in `named`."""
    state = hashlib.blake2b(digest_size=16)
    for name, value in named.items():
        for part, dense in parts(value).items() if isinstance(value, torch.Tensor) else ():
            state.update(writable(f"{name}{part} {dense.dtype} {tuple(dense.shape)};").encode())
            flat = dense.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1)  # one element is contiguous with any stride
            state.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return state.hexdigest()
