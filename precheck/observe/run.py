"""Runs a user's `Job` once, from its initial weights to the last step, under a precision or as a reference, and returns a `Trace`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
import sys
from collections.abc import Iterator

import torch

from precheck import interrupts
from precheck.observe import state
from precheck.observe.containers import tensors
from precheck.observe.decisions.log import DecisionLog, Recording
from precheck.observe.decisions.op_sequence import Program
from precheck.observe.decisions.replay import DecisionReplay
from precheck.observe.decisions.selections import Selections
from precheck.observe.job import Job, named
from precheck.observe.kernel_fixes import substituted
from precheck.observe.listeners import otherwise
from precheck.observe.models import conversion, float32_parts
from precheck.observe.recording.digest import Digest, numbers, wished
from precheck.observe.recording.module_hooks import LOW, Boundaries, Position
from precheck.observe.records import Trace
from precheck.observe.setting import Setting
from precheck.observe.shadow.memory.window import Judge
from precheck.observe.shadow.mode import Shadow
from precheck.observe.shadow.operations import Observation
from precheck.observe.shadow.own_decisions import OwnDecisions
from precheck.observe.shadow.places.module_tracker import ModuleTracker
from precheck.observe.shadow.reference import Reference
from precheck.observe.training import Training
from precheck.torch_internals import innermost_mode, no_dispatch, without_innermost_mode, without_modes
from precheck.torch_support import dense_parts, float32, sparse
from precheck.torch_support.autocast import cuda_policy_on_cpu


def run(job: Job, setting: Setting) -> Trace:
    """Runs `job` and returns its trace. The user's model and the state of the process are always restored."""
    doing = f"running the model under {setting.precision.name}" if setting.precision else "running the model as a reference"
    composed = () if setting.precision is not None else job.model.named_parameters()
    with otherwise(doing), sparse.explained(named(job.model, job.inputs)), dense_parts.explained(composed):
        return _ran(job, setting)


def _ran(job: Job, setting: Setting) -> Trace:
    trace = Trace()
    kept = float32_parts.set_apart(job.model)
    with state.preserved(job.model, job.loss), undisturbed(job.device), float32.products(tf32=False), rnn_kernels(job, setting), kept:
        boundaries = Boundaries(job.model, trace, setting, sampled=job.sampled, loss=job.loss)
        tables = prepare(job, setting)
        if tables and setting.shadow is not None and setting.dtype is not None:
            with setting.shadow:  # only the shadow, since records begin with the inputs
                conversion.rounded(tables, setting.dtype)
        with _modes(setting, job.device, boundaries.position, trace) as (recording, following), boundaries.attached():
            aside = None if setting.shadow is None else functools.partial(_unwatched, setting, job.device)
            training = Training(job, boundaries, setting, recording=recording, following=following, aside=aside)
            training.steps()
            if setting.returned is not None:
                with no_dispatch():
                    setting.returned += [each.detach() for _, each in tensors(training.result) if type(each) is torch.Tensor]
        judged = setting.shadow is None or setting.records is not None
        if setting.precision is not None and setting.disturbance is None and judged and not setting.unmeasured:
            trace.aged = training.aged(lambda: Shadow(ModuleTracker(None)))
    return trace


@dataclasses.dataclass(slots=True)
class WatchedRun:
    """A run whose ops were watched. `reference` is the trace of the reference run, if it was asked for and no separate run is needed."""

    trace: Trace
    observation: Observation
    reference: Trace | None = None
    own: DecisionLog | None = None  # what float32 would decide, where there is a reference


def observed(job: Job, setting: Setting, judge: Judge | None = None, *, refers: bool = False) -> WatchedRun:
    """Runs `job` under shadow execution. `judge` judges the operations that a long run drops. `refers`: records are made of the shadows
    too."""
    where = ModuleTracker(job.model)
    wide = setting.precision is not None and setting.precision.compute_dtype is torch.float32
    shadow = Shadow(where, reference=torch.float64, low=frozenset({torch.float32}), judge=judge) if wide else Shadow(where, judge=judge)
    stored = setting.precision is not None and setting.precision.autocasts and not setting.precision.gemm
    reference = Reference(shadow, shadow.exponents) if refers and stored else None
    shadow.observation.imposed = frozenset() if setting.records is None else setting.records.imposed
    with interrupts.held(), where.followed(), shadow.watched():
        kept: list[torch.Tensor] = []
        wish, witness = wished(), shadow.exponents if reference is None else reference
        digest = None if wish is None else Digest(witness)
        seen = dataclasses.replace(
            setting, shadow=shadow, witness=digest or witness, steps=reference is not None, returned=kept, files=digest is not None
        )  # fmt: skip
        trace = run(job, seen)
        if wish is not None and digest is not None:
            wish.seen.append(numbers(digest, trace, draws=setting.records is not None and bool(setting.records.drawn)))
    observation = shadow.finish()
    kept.clear()
    beside = None if reference is None else reference.complete(trace)
    return WatchedRun(trace, observation, beside, None if beside is None or shadow.own is None else shadow.own.log)


def prepare(job: Job, setting: Setting) -> list[conversion.Table]:
    """Gives the model new storage in the run's format, and sets seeds. Modules that are kept in float32 are neither rounded nor disturbed.
    The buffers that it returns are still in float32: they are rounded later, where the shadow sees it.
    """
    copy = state.floats_to(setting.dtype, model=job.model) if setting.dtype is not None else (lambda value: value.detach().clone())
    apart = float32_parts.kept_in_float32(job.model)
    kept = float32_parts.storage(apart) | conversion.left_alone(job.model, setting.buffers if setting.buffers in LOW else None)
    wide = state.floats_to(torch.float32) if setting.dtype in LOW else copy
    disturb = setting.disturbance
    names = {} if disturb is None else {dense_parts.address(param): name for name, param in job.model.named_parameters()}

    def parameter(value: torch.Tensor) -> torch.Tensor:
        if dense_parts.address(value) in kept:
            return wide(value)
        return copy(value) if disturb is None else disturb.parameter(names.get(dense_parts.address(value), ""), copy(value))

    stored = state.rounded_to(setting.buffers) if setting.buffers is not None else (lambda value: value)
    tables: list[conversion.Table] = []
    if conversion.conversion(job.model, setting.dtype) is not None:
        conversion.converted(job.model, setting.dtype)
    else:
        if setting.shadow is not None and setting.dtype in LOW:
            tables = conversion.tables(job.model, setting.dtype, kept)
        later = {dense_parts.address(module.get_buffer(name)) for module, name in tables}

        def buffer(value: torch.Tensor) -> torch.Tensor:
            return wide(value) if dense_parts.address(value) in kept or dense_parts.address(value) in later else copy(stored(value))

        state.refresh(job.model, parameter=parameter, buffer=buffer)
    if setting.dtype is not None:
        float32_parts.converted(apart, setting.dtype)
    state.seed(job.seed)
    random.seed(job.seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(job.seed % 2**32)
    return tables


@contextlib.contextmanager
def _modes(setting: Setting, device: str, position: Position, trace: Trace) -> Iterator[tuple[Recording | None, DecisionReplay | None]]:
    """Enters the modes of a run. Yields the mode that records decisions and the one that follows them, if any."""
    recording, program = None, Program(position) if setting.steps else None
    with contextlib.ExitStack() as stack:
        if setting.precision is not None:
            stack.enter_context(setting.precision.step(device))
            if setting.precision.autocasts and setting.precision.policy == "cuda" and device == "cpu":
                stack.enter_context(cuda_policy_on_cpu())  # around the backward pass too: a checkpoint recomputes under autocast there
        if setting.extra_mode is not None:
            stack.enter_context(setting.extra_mode)
        if setting.selections is not None:
            stack.enter_context(Selections(setting.selections, position))
        if setting.disturbance is not None:
            stack.enter_context(setting.disturbance.products())
        if setting.records is not None:
            recording = Recording(setting.records, position, program)
            if setting.shadow is None:
                stack.enter_context(recording)
            else:  # one mode for both, since calling a mode costs as much as some ops
                setting.shadow.executor = recording.run
                setting.shadow.own = OwnDecisions(recording) if setting.steps else None
        elif setting.precision is not None and setting.shadow is None and device == "cpu" and not setting.compiled:
            stack.enter_context(substituted(setting.precision.compute_dtype))
        following = None
        if setting.follows is not None and setting.dtype is not None:
            disturb = setting.disturbance.result if setting.disturbance and setting.disturbance.everywhere else None
            read = setting.disturbance.read if setting.disturbance is not None else None
            mode = DecisionReplay(
                setting.follows, position, setting.dtype, disturb=disturb, read=read, own=setting.decides, compared_with=setting.compared_with,
                program=program,
            )  # fmt: skip
            following = stack.enter_context(mode)
        if setting.shadow is not None:
            stack.enter_context(setting.shadow)  # last, so that it sees an op first
        yield recording, following
        if following is not None:
            trace.flips = following.flips
            following.ended()
        if program is not None:
            trace.steps = program.steps


@contextlib.contextmanager
def _unwatched(setting: Setting, device: str) -> Iterator[None]:
    """Inside, the shadow is off, and the run uses the same kernels as with it."""
    if innermost_mode() is not setting.shadow:
        yield
        return
    kernels = substituted(setting.precision.compute_dtype) if device == "cpu" and setting.precision is not None else contextlib.nullcontext()
    with without_innermost_mode(), kernels:
        yield


@contextlib.contextmanager
def undisturbed(device: str) -> Iterator[None]:
    """Inside, the caller's autocast, no_grad and inference mode are off.
    Autocast's cache of cast weights is emptied when its outermost block ends. This may be the caller's, so the cache is emptied here too:
    the run's weights must not stay in it.
    """
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device, enabled=False):
            yield
    finally:
        torch.clear_autocast_cache()


@contextlib.contextmanager
def rnn_kernels(job: Job, setting: Setting) -> Iterator[None]:
    """Inside, torch uses its own recurrent kernels if oneDNN cannot train a recurrent layer in the format.
    oneDNN has no such kernel for float16, and none for bfloat16 without AVX-512. Torch raises an error there.
    """
    dtype = setting.precision.compute_dtype if setting.precision is not None else torch.float32
    recurrent = any(isinstance(module, torch.nn.RNNBase) for module in job.model.modules())
    if dtype not in LOW or job.device != "cpu" or not recurrent or trains_recurrent(dtype):
        yield
        return
    before, *_ = torch.backends.mkldnn.set_flags(_enabled=False)
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(_enabled=before)


@functools.cache
def trains_recurrent(dtype: torch.dtype) -> bool:
    """Whether torch's LSTM runs on this CPU under autocast to that low dtype, also backward. It uses no random numbers and calls no hooks.
    Torch does not tell (its query for bfloat16 ignores ONEDNN_MAX_CPU_ISA), so an LSTM with a single number is tried.
    """
    with torch.inference_mode(False), torch.enable_grad(), without_modes():
        value, state, *weights = (torch.zeros(shape, device="cpu", dtype=torch.float32) for shape in ((1, 1, 1), (1, 1, 1), (4, 1), (4, 1)))
        weights = [weight.requires_grad_() for weight in weights]
        try:
            with torch.autocast("cpu", dtype, cache_enabled=False):
                torch.lstm(value, (state, state), weights, False, 1, 0.0, True, False, False)[0].sum().backward()
        except RuntimeError:
            return False
    return True
