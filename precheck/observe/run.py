"""One run of a user's model, from fresh weights to the last step, under a precision or as the float32 reference."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from precheck.observe import state
from precheck.observe.boundaries import Boundaries, Disturbance, Position, recorded
from precheck.observe.decisions import Recording, Tape
from precheck.observe.following import Following
from precheck.observe.records import Trace
from precheck.observe.structure import call, mapped, tensors
from precheck.precisions import Precision

EXAMPLE = "lambda params: torch.optim.AdamW(params, lr=1e-3)"


class InputError(ValueError):
    """Something the user passed cannot be measured; the message says what, what is accepted and what to type."""


@dataclasses.dataclass(slots=True)
class Job:
    """What the user asked to have measured."""

    model: torch.nn.Module
    inputs: Any
    loss: Callable[[Any], torch.Tensor] | None = None
    optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer] | None = None
    steps: int = 1
    seed: int = 0

    @property
    def device(self) -> str:
        for tensor in (*self.model.parameters(), *self.model.buffers(), *(t for _, t in tensors(self.inputs))):
            return tensor.device.type
        return "cpu"


@dataclasses.dataclass(slots=True)
class Setting:
    """How a run is carried out. `dtype` is what floats are stored in (None leaves them); the rest is off where None."""

    dtype: torch.dtype | None
    precision: Precision | None = None  # None: a reference run, plain arithmetic in `dtype`
    records: Tape | None = None
    follows: Tape | None = None
    disturbance: Disturbance | None = None
    decides: Tape | None = None  # where to write what this run would have decided itself
    rival: Tape | None = None  # whose decisions to count its own against; None: those of `follows`
    buffers: torch.dtype | None = None  # what the run compared with keeps its floating buffers in


def low(precision: Precision, *, records: Tape | None = None) -> Setting:
    """The run that a precision prescribes; with a tape, decisions and draws are written to it."""
    return Setting(None if precision.autocasts else precision.param_dtype, precision, records=records)


def reference(
    dtype: torch.dtype,
    precision: Precision | None = None,
    *,
    follows: Tape | None = None,
    disturbance: Disturbance | None = None,
    decides: Tape | None = None,
    rival: Tape | None = None,
) -> Setting:
    """A plain run in `dtype`, on the decisions of `follows`, disturbed where a noise run asks for it.

    Buffers enter it as `precision` stores them: rounding a table of frequencies is done by the conversion of the model, not by
    the model's own code, and is as given as the weights are. A buffer that the format cannot hold at all (a mask's -1e9) stays.
    """
    stored = precision.param_dtype if precision is not None and precision.is_low and not precision.autocasts else None
    return Setting(dtype, follows=follows, disturbance=disturbance, decides=decides, rival=rival, buffers=stored)


def run(job: Job, setting: Setting) -> Trace:
    """Runs `job` and returns what was seen. Whatever happens, the user's model and the process come back as they were."""
    trace = Trace()
    with state.preserved(job.model), _tf32_off(), _kernels(job, setting):
        boundaries = Boundaries(job.model, trace, disturbance=setting.disturbance)
        _prepare(job, setting)
        with _modes(setting, boundaries.position, trace), boundaries.attached():
            _Run(job, setting, boundaries).steps()
    return trace


def _prepare(job: Job, setting: Setting) -> None:
    """Fresh storage under the model's tensors, and the seed."""
    copy = state.floats_to(setting.dtype) if setting.dtype is not None else (lambda value: value.detach().clone())
    disturb = setting.disturbance
    names = {param.data_ptr(): name for name, param in job.model.named_parameters()}

    def parameter(value: torch.Tensor) -> torch.Tensor:
        return copy(value) if disturb is None else disturb.parameter(names.get(value.data_ptr(), ""), copy(value))

    stored = state.rounded_to(setting.buffers) if setting.buffers is not None else (lambda value: value)
    state.refresh(job.model, parameter=parameter, buffer=lambda value: copy(stored(value)))
    torch.manual_seed(job.seed)
    random.seed(job.seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(job.seed % 2**32)


@contextlib.contextmanager
def _modes(setting: Setting, position: Position, trace: Trace) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if setting.precision is not None:
            stack.enter_context(setting.precision.step())
        if setting.disturbance is not None:
            stack.enter_context(setting.disturbance.products())
        if setting.records is not None:
            stack.enter_context(Recording(setting.records, position))
        following = None
        if setting.follows is not None and setting.dtype is not None:
            disturb = setting.disturbance.result if setting.disturbance and setting.disturbance.everywhere else None
            mode = Following(setting.follows, position, setting.dtype, disturb=disturb, own=setting.decides, rival=setting.rival)
            following = stack.enter_context(mode)
        yield
        if following is not None:
            trace.flips = following.flips


def _kernels(job: Job, setting: Setting) -> contextlib.AbstractContextManager[Any]:
    """oneDNN has no float16 recurrent kernel for training; without it torch takes its own, as on hardware that has none."""
    half = setting.precision is not None and setting.precision.compute_dtype is torch.float16
    if half and job.device == "cpu" and any(isinstance(module, torch.nn.RNNBase) for module in job.model.modules()):
        return torch.backends.mkldnn.flags(enabled=False)
    return contextlib.nullcontext()


@contextlib.contextmanager
def _tf32_off() -> Iterator[None]:
    """A reference in tf32 would be no reference: cudnn allows tf32 unless told otherwise."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


class _Run:
    def __init__(self, job: Job, setting: Setting, boundaries: Boundaries) -> None:
        self.job, self.setting, self.boundaries, self.trace = job, setting, boundaries, boundaries.trace
        self.precision = setting.precision
        self.named = {name: param for name, param in job.model.named_parameters() if param.requires_grad}
        self.start = {name: param.detach().to(torch.float64, copy=True) for name, param in self.named.items()} if job.optimizer else {}
        self.masters = self._masters()
        self.optimizer = self._make_optimizer()
        self.scaler = self.precision.make_scaler(job.device) if self.precision else torch.amp.GradScaler(job.device, enabled=False)

    def steps(self) -> None:
        for step in range(1, self.job.steps + 1 if self.optimizer else 2):
            self.boundaries.step, self.boundaries.enabled = step, step == 1
            if not self._step(step):
                break

    def _step(self, step: int) -> bool:
        """Forward, loss, backward, update. False where nothing more can be learnt from going on."""
        loss = self._forward(step)
        if loss is None or not loss.requires_grad:
            if self.optimizer:
                raise InputError("an optimizer was given, but the loss does not depend on any parameter that requires a gradient")
            return False
        self._backward(loss)
        while self.scaler.is_enabled() and not self._finite_gradients() and self._back_off():
            self._once_more(step)
        if step > 1 and (self.trace.collapsed or not bool(loss.isfinite())):
            self.boundaries.enabled = True  # only the first step's boundaries are kept, unless a later one goes wrong
            self._rewind()
            self._once_more(step)
            return False
        if step == 1:
            self._record_gradients()
        if self.optimizer is not None:
            self._update(step)
        return True

    def _backward(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()

    def _once_more(self, step: int) -> None:
        loss = self._forward(step)
        if loss is not None:
            self._backward(loss)

    def _forward(self, step: int) -> torch.Tensor | None:
        job = self.job
        for param in job.model.parameters():
            param.grad = None
        storage = self.setting.dtype
        inputs = mapped(job.inputs, lambda value: state.copied(value, storage))
        if self.setting.disturbance is not None:
            inputs = mapped(inputs, self.setting.disturbance.input)
        random_state = torch.get_rng_state()
        self._again = (random_state, {id(b): b.detach().clone() for b in job.model.buffers()})
        context = self.precision.autocast(job.device) if self.precision else contextlib.nullcontext()
        with context:
            result = call(job.model, inputs)
            self.boundaries.forward_done(result)
            loss = job.loss(result) if job.loss is not None else None
        if loss is not None:
            self._check_loss(loss)
            self.trace.add(recorded("loss", "loss", step, loss))
        return loss

    def _check_loss(self, loss: Any) -> None:
        if not isinstance(loss, torch.Tensor):
            raise InputError(f"loss returned {type(loss).__name__}, not a tensor; it must return a scalar tensor, as in loss=lambda out: out.mean()")
        if loss.numel() != 1:
            raise InputError(f"loss returned a tensor of shape {tuple(loss.shape)}; it must be a scalar, so reduce it: .mean() or .sum()")

    def _finite_gradients(self) -> bool:
        return all(bool(param.grad.isfinite().all()) for param in self.named.values() if param.grad is not None)

    def _back_off(self) -> bool:
        """Halves the loss scale and goes back to before the forward, as GradScaler would by skipping the step."""
        scale = self.scaler.get_scale()
        if scale <= 1:
            self.trace.collapsed = True
            return False
        self.scaler.update(scale / 2)
        self.trace.skipped += 1
        self._rewind()
        return True

    def _rewind(self) -> None:
        """To before the last forward: its random numbers and the buffers that it updated."""
        random_state, buffers = self._again
        torch.set_rng_state(random_state)
        with torch.no_grad():
            for buffer in self.job.model.buffers():
                if id(buffer) in buffers:
                    buffer.copy_(buffers[id(buffer)])

    def _record_gradients(self) -> None:
        scale = self.scaler.get_scale() if self.scaler.is_enabled() else 1.0
        self.trace.scale = scale
        for name, param in self.named.items():
            if param.grad is not None and param.grad.layout == torch.strided:
                self.trace.add(recorded("parameter-gradient", name, 1, param.grad))
        if scale != 1:
            for key, record in self.trace.records.items():
                if record.kind in ("gradient", "parameter-gradient"):
                    self.trace.records[key] = dataclasses.replace(
                        record, sketch=record.sketch / scale, norm=record.norm / scale, amax=record.amax / scale
                    )

    def _masters(self) -> dict[str, torch.nn.Parameter]:
        """What the optimizer steps on: the model's own parameters, or float32 copies of them."""
        if self.precision is None or not self.precision.master or not self.job.optimizer:
            return self.named
        return {name: torch.nn.Parameter(param.detach().float()) for name, param in self.named.items()}

    def _make_optimizer(self) -> torch.optim.Optimizer | None:
        if self.job.optimizer is None:
            return None
        optimizer = self.job.optimizer(list(self.masters.values()))
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InputError(f"optimizer returned {type(optimizer).__name__}; it must return a torch.optim.Optimizer, as in optimizer={EXAMPLE}")
        own = {id(param) for param in self.masters.values()}
        held = [param for group in optimizer.param_groups for param in group["params"]]
        foreign = [param for param in held if id(param) not in own and param.requires_grad]
        if foreign:
            raise InputError(
                f"the optimizer holds {len(foreign)} of {len(held)} parameters that are not the ones it was given (first: shape "
                f"{tuple(foreign[0].shape)}); build it from its argument, as in optimizer={EXAMPLE}"
            )
        settings = {name: value for name, value in optimizer.defaults.items() if isinstance(value, (int, float, tuple)) and value is not False}
        self.trace.optimizer = " ".join([type(optimizer).__name__, *(f"{name}={value}" for name, value in sorted(settings.items()))])
        return optimizer

    def _update(self, step: int) -> None:
        assert self.optimizer is not None
        for name, master in self.masters.items():
            param = self.named[name]
            if master is not param:
                master.grad = None if param.grad is None else param.grad.float()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        with torch.no_grad():
            for name, master in self.masters.items():
                if master is not self.named[name]:
                    self.named[name].copy_(master)
        for name, master in self.masters.items():
            now = master.detach().double()
            norm, dtype = float(now.norm()), str(master.dtype).removeprefix("torch.")
            record = recorded("update", name, step, now - self.start[name])
            self.trace.add(dataclasses.replace(record, dtype=dtype, weight_norm=norm if math.isfinite(norm) else 0.0))
