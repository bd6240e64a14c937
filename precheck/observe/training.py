"""Makes the training steps of one run: forward, loss, backward, loss scale, optimizer."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from precheck.observe import state
from precheck.observe.containers import call, leaves, mapped, scored, tensors
from precheck.observe.decisions.log import Recording
from precheck.observe.decisions.modes import undecided
from precheck.observe.decisions.replay import DecisionReplay
from precheck.observe.halvings import fewest
from precheck.observe.job import Job, check_loss, detached_loss, made_optimizer, no_steps, nothing_to_compare
from precheck.observe.listeners import doing
from precheck.observe.recording.module_hooks import LOW, Boundaries
from precheck.observe.recording.recorder import Moved
from precheck.observe.recording.reduce import thinned
from precheck.observe.setting import Setting
from precheck.observe.shadow.comparing.statistics import finite_everywhere, sampled
from precheck.observe.shadow.training import optimizer_rollout
from precheck.torch_internals import has_step_hooks, no_dispatch, storage_key
from precheck.torch_support.dense_parts import numbers

_CARRYING = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Optimizers that carry every Inf or NaN of a gradient into its weight, with all settings. A number that is scaled, added, squared or divided by its
own root stays Inf or becomes NaN. Signs and clipping would lose it, and subclasses may do anything. So may fused kernels: torch 2.13's fused SGD
does not change bfloat16 weights on a CPU."""


class Training:
    """The steps of one run, on the user's model after `run.prepare`."""

    def __init__(
        self, job: Job, boundaries: Boundaries, setting: Setting, *, recording: Recording | None = None, following: DecisionReplay | None = None,
        aside: Callable[[], contextlib.AbstractContextManager[None]] | None = None,
    ) -> None:  # fmt: skip
        self.job, self.boundaries, self.recorder, self.trace = job, boundaries, boundaries.recorder, boundaries.trace
        self.recording, self.following, self.setting, self.precision = recording, following, setting, setting.precision
        self.led = following.during if following is not None else contextlib.nullcontext  # encloses a forward or backward pass
        self.aside = aside  # a context without the shadow; None: there is no shadow
        self.parameters = dict(job.model.named_parameters())
        self.named = {name: param for name, param in self.parameters.items() if param.requires_grad}
        self.leaves = {id(param) for param in self.named.values()}
        self.moved: list[Moved] = []  # parameters, as of their last recorded displacement
        with no_dispatch():
            self.start = {name: self._kept(name, param) for name, param in self.named.items()} if job.optimizer else {}
        self.masters = self._masters()
        self.optimizer = self._make_optimizer()
        self.differentiable = False  # whether the model's last result requires a gradient
        self.recorded = True  # whether the loss is recorded; not while a loss scale is searched
        self.result: Any = None  # the model's last result, if ops are watched
        self.broken, self.updated = False, 0  # whether the last step made a weight Inf or NaN; number of the last optimizer step
        self.scaler = self.precision.make_scaler(job.device) if self.precision else torch.amp.GradScaler(job.device, enabled=False)

    def steps(self) -> None:
        """Makes all steps, or stops if further steps would show nothing. Records the displacements of weights after the last step."""
        for step in range(1, self.job.steps + 1 if self.optimizer else 2):
            self.boundaries.step, self.boundaries.enabled = step, step == 1
            with doing(f"step {step} of {self.job.steps}") if step > 1 else contextlib.nullcontext():
                if not self._step(step):
                    break
        if self.updated:
            self._record_updates(self.updated)

    def _step(self, step: int) -> bool:
        """One step: forward, loss, backward, update. False if further steps would show nothing."""
        if step == 1 and self.aside is not None and self.scaler.is_enabled() and self.job.loss is not None:
            self._find_scale_beforehand(self.aside)
        loss = self._forward(step)
        if loss is None or self.setting.early:
            return False
        if not loss.requires_grad:
            if self.optimizer or self.differentiable:  # else the user chose so: a frozen model, or torch.no_grad()
                detached_loss(loss, trains=bool(self.named))
            return False
        if self.boundaries.fast_path and step == 1 and any(leaf not in self.leaves for leaf in map(id, leaves(loss))):
            self.trace.elsewhere = True
            return False
        self._backward(loss)
        if self.scaler.is_enabled() and not self.trace.collapsed and not self._finite_gradients():
            self._find_scale(step, lost=not bool(loss.isfinite().all()))
        if step > 1 and (self.trace.collapsed or self.setting.fails(step, loss)):
            # boundaries are recorded in the first step, and in a later one that fails
            self.trace.retaken = self.boundaries.enabled = True
            self._rewind()
            self._once_more(step)
            return False
        if step == 1:
            self._record_gradients()
        if self.optimizer is not None:
            self._update(step)
        return True

    def _backward(self, loss: torch.Tensor) -> None:
        with no_steps(), self.led("backward"):
            self.scaler.scale(loss).backward()

    def _once_more(self, step: int) -> None:
        loss = self._forward(step)
        if loss is not None:
            self._backward(loss)

    def _forward(self, step: int) -> torch.Tensor | None:
        job = self.job
        for param in self.parameters.values():
            param.grad = None
        if self.optimizer is not None:
            self.optimizer.zero_grad()  # may clear more than gradients, such as those of each sample
        inputs = mapped(job.inputs, lambda value: state.copied(value, self.setting.dtype, model=job.model))
        if self.boundaries.disturbance is not None:
            inputs = mapped(inputs, self.boundaries.disturbance.input)
        if self.recording is not None:
            self.recording.gives(inputs)
        if self.scaler.is_enabled() or step > 1:  # only then the forward pass may have to be repeated
            self._rewind = self._checkpoint()
        with self._autocast(), self.boundaries.forward(), self.led("forward"):
            result = call(job.model, inputs)
            self.differentiable = any(each.requires_grad for _, each in tensors(result))
            self.boundaries.forward_done(result)
            self.result = result if self.aside is not None else None
            if job.loss is None:
                if not self.trace.records and not (self.boundaries.witness is not None and any(True for _ in tensors(result))):
                    nothing_to_compare(result)  # a witness accepts integers too
                return None
            loss = scored(job.loss, result)
        check_loss(loss)
        if self.recorded:
            self.recorder.add("loss", "loss", step, loss)
        return loss

    @contextlib.contextmanager
    def _autocast(self) -> Iterator[None]:
        """The precision's autocast, with an empty cache of cast weights at the beginning and at the end, as in a training loop.
        Torch empties the cache at the end of the outermost block, which here is `undisturbed`. Old casts would be used again: by
        a reentrant checkpoint in the backward pass, without a gradient (torch 2.9), or after the weights have changed.
        """
        torch.clear_autocast_cache()
        try:
            with self.precision.autocast(self.job.device) if self.precision else contextlib.nullcontext():
                yield
        finally:
            torch.clear_autocast_cache()

    def _checkpoint(self) -> Callable[[], None]:
        model = state.checkpoint(self.job.model, self.job.loss, frozen=self.scaler.is_enabled())  # the search for a scale makes many forward passes
        numbering = self.recording.marked() if self.recording else lambda: None

        def rewind() -> None:
            model()
            numbering()

        return rewind

    def _finite_gradients(self) -> bool:
        gradients = (param.grad for param in self.named.values() if param.grad is not None)
        return finite_everywhere(gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients)

    def _find_scale_beforehand(self, aside: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        """Finds the first step's loss scale in cheap unwatched runs, so that the step's ops are watched only once, under that scale."""
        with self._unrecorded(), aside():
            loss = self._forward(1)
            if loss is not None and loss.requires_grad:
                self._backward(loss)
                if not self._finite_gradients():
                    self._halve(1, lost=not bool(loss.isfinite().all()))
            self._rewind()

    def _find_scale(self, step: int, *, lost: bool) -> None:
        """Halves the loss scale until all gradients are finite, as GradScaler does by skipping steps.
        Under a shadow, the runs of the search are not watched, and the step is run again under the scale found.
        """
        if self.aside is None:
            self._halve(step, lost=lost)
            return
        self.trace.retaken = True
        with self._unrecorded(), self.aside():
            scale = self._halve(step, lost=lost)
        self._finite_under(step, scale)

    @contextlib.contextmanager
    def _unrecorded(self) -> Iterator[None]:
        enabled, self.boundaries.enabled, self.recorded = self.boundaries.enabled, False, False
        try:
            yield
        finally:
            self.boundaries.enabled, self.recorded = enabled, True

    def _halve(self, step: int, *, lost: bool) -> float:
        """Sets and returns the largest loss scale under which the step's gradients are finite, or 1 if there is none."""
        most = self.scaler.get_scale()
        span = max(0, round(math.log2(most)))
        found = fewest(span, lambda halvings: self._finite_under(step, most / 2**halvings), lost=lost)
        self.trace.collapsed, halvings = self.trace.collapsed or found is None, span if found is None else found
        self.trace.skipped += halvings
        return float(most / 2**halvings)

    def _finite_under(self, step: int, scale: float) -> bool:
        """Runs the step again under that loss scale. Returns whether its gradients are finite."""
        self._rewind()
        self.scaler.update(scale)
        self._once_more(step)
        return self._finite_gradients()

    def _record_gradients(self) -> None:
        scale = self.scaler.get_scale() if self.scaler.is_enabled() else 1.0
        self.trace.scale = scale
        told = self._told_by_weights()
        for name, param in self.named.items():
            if param.grad is not None and param.grad.layout == torch.strided:
                self.recorder.add("parameter-gradient", name, 1, param.grad, alone=id(self.masters[name]) in told)
            elif param.grad is not None and self.recorder.witness is not None:  # a sparse gradient has no record
                self.recorder.witness.boundary("parameter-gradient", name, 1, param.grad)
        if scale != 1:
            self.recorder.unscale(scale)

    def _told_by_weights(self) -> set[int]:
        """Ids of parameters that surely become Inf or NaN where their gradient is so. In a glance, samples of such gradients are enough, since all
        weights are checked after each step."""
        if not self.boundaries.fast_path or self.optimizer is None or type(self.optimizer) not in _CARRYING or has_step_hooks(self.optimizer):
            return set()  # a hook may repair a gradient
        return {id(param) for group in self.optimizer.param_groups if not group.get("fused") for param in group["params"]}

    def _masters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters of the optimizer: the model's own, or float32 master copies."""
        if self.precision is None or not self.precision.master or not self.job.optimizer:
            return self.named
        return {name: torch.nn.Parameter(param.detach().float()) for name, param in self.named.items()}

    def _make_optimizer(self) -> torch.optim.Optimizer | None:
        if self.job.optimizer is None:
            return None
        optimizer = made_optimizer(self.job.optimizer, list(self.masters.values()))
        settings = {name: value for name, value in optimizer.defaults.items() if isinstance(value, (int, float, tuple)) and value is not False}
        self.trace.optimizer = " ".join([type(optimizer).__name__, *(f"{name}={value}" for name, value in sorted(settings.items()))])
        return optimizer

    def _update(self, step: int) -> None:
        assert self.optimizer is not None
        for name, master in self.masters.items():
            if master is not (param := self.named[name]):
                master.grad = None if param.grad is None else param.grad.float()
        kept = optimizer_rollout.gradients_kept(self.masters.values() if step == self.job.steps else ())
        with undecided(self.optimizer, self.recording, self.following), kept:
            self.scaler.step(self.optimizer)
        self.scaler.update()
        with torch.no_grad():
            for name, master in self.masters.items():
                if master is not self.named[name]:
                    self.named[name].copy_(master)
        self.updated = step
        self.broken = not finite_everywhere(map(numbers, self.masters.values()))
        if self.broken:
            self._record_updates(step)

    def aged(self, another: Callable[[], Any]) -> dict[str, tuple[float, int]]:
        """Continues the optimizer alone for low-format parameters that mostly did not move although they had gradients. Returns, by name, the share
        of the displacement that arrives and the number of steps. `another` makes a shadow."""
        if self.optimizer is None:
            return {}
        pulled = [each for each in self.moved if each.parameter.grad is not None and each.parameter.grad.layout is torch.strided]
        low = [each for each in pulled if each.parameter.dtype in LOW and self._may_stand(each.name)]
        still = {id(each.parameter): each.name for each, (stuck, moving) in zip(low, self._standing(low), strict=True) if 2 * stuck > moving}
        found = optimizer_rollout.aged(self.optimizer, set(still), another, kept=self.updated == self.job.steps)
        return {still[number]: (each.arrived, each.steps) for number, each in found.items()}

    def _may_stand(self, name: str) -> bool:
        """Whether some of its elements have not moved, according to the record of its last displacement."""
        record = self.trace.records[f"update:{name}@{self.updated}"]
        return bool(record.zeros or record.nonfinite)

    def _standing(self, moved: Sequence[Moved]) -> list[list[int]]:
        """For each parameter, how many elements with a gradient have not moved, and how many have a gradient."""
        counts = []
        with torch.no_grad(), no_dispatch():
            for each in moved:
                assert each.parameter.grad is not None
                pulled = sampled(self._compared(each.name, each.parameter.grad)).bool()
                still = sampled(each.start) == sampled(each.now)
                counts += [torch.count_nonzero(still.logical_and_(pulled)), torch.count_nonzero(pulled)]
            return torch.stack([count.to(counts[0].device) for count in counts]).view(-1, 2).tolist() if counts else []

    def _compared(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        """The elements of a parameter that are compared with their earlier values: all, or a sample if that is enough."""
        value = numbers(parameter).detach()
        return thinned(value) if f"update:{name}@{self.job.steps}" in self.job.sampled else value

    def _kept(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        """A copy of the elements that are compared, as they are now."""
        value = self._compared(name, parameter)
        return value.clone() if storage_key(value) == storage_key(numbers(parameter)) else value

    def _record_updates(self, step: int) -> None:
        with no_dispatch():
            self.moved = [Moved(name, numbers(master), self._compared(name, master), self.start[name]) for name, master in self.masters.items()]
        self.recorder.moves(step, self.moved, broken=self.broken)
