"""The training steps of one run: forward, loss, backward, loss scale, optimizer."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from precheck.observe import state
from precheck.observe.containers import call, leaves, mapped, scored, tensors
from precheck.observe.decision_modes import undecided
from precheck.observe.decision_replay import DecisionReplay
from precheck.observe.decisions import Recording
from precheck.observe.halvings import fewest
from precheck.observe.job import EXAMPLE, InputError, Job, check_loss, nothing_to_compare
from precheck.observe.listeners import doing
from precheck.observe.module_hooks import LOW, Boundaries
from precheck.observe.recorder import Moved
from precheck.observe.reduce import thinned
from precheck.observe.shadow import optimizer_rollout
from precheck.observe.shadow.statistics import finite, sampled
from precheck.precisions import Precision
from precheck.torch_internals import has_step_hooks, no_dispatch, storage_key

_CARRYING = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Optimizers by which no Inf or NaN of a gradient is lost on the way to its weight, whatever their settings. What is scaled, added, squared or
divided by its own root stays Inf or becomes NaN. Signs and clipping would lose it, and subclasses may do anything. So may fused kernels: torch
2.13's of SGD leaves bfloat16 weights on a CPU where they were."""


class Training:
    """The steps of one run, on the user's model as `run` has prepared it."""

    def __init__(
        self, job: Job, boundaries: Boundaries, *, storage: torch.dtype | None, precision: Precision | None, recording: Recording | None = None,
        following: DecisionReplay | None = None, early: bool = False, aside: Callable[[], contextlib.AbstractContextManager[None]] | None = None,
    ) -> None:  # fmt: skip
        self.job, self.boundaries, self.recorder, self.trace = job, boundaries, boundaries.recorder, boundaries.trace
        self.recording, self.following, self.storage, self.precision, self.early = recording, following, storage, precision, early
        self.led = following.during if following is not None else contextlib.nullcontext  # goes around a forward or backward pass
        self.aside = aside  # in it nobody watches the ops; None: nobody does anyway
        self.parameters = dict(job.model.named_parameters())
        self.named = {name: param for name, param in self.parameters.items() if param.requires_grad}
        self.leaves = {id(param) for param in self.named.values()}
        self.moved: list[Moved] = []  # parameters, as they were when their moves were last written down
        with no_dispatch():
            self.start = {name: self._kept(name, param) for name, param in self.named.items()} if job.optimizer else {}
        self.masters = self._masters()
        self.optimizer = self._make_optimizer()
        self.differentiable = False  # whether a gradient can come back for what the model returned last
        self.result: Any = None  # what the model returned last, where ops are watched
        self.broken, self.updated = False, 0  # whether the last step made a weight Inf or NaN; the last that the optimizer was asked to take
        self.scaler = self.precision.make_scaler(job.device) if self.precision else torch.amp.GradScaler(job.device, enabled=False)

    def steps(self) -> None:
        """All steps, or as many as something can be learnt from. What became of the weights is written down after the last."""
        for step in range(1, self.job.steps + 1 if self.optimizer else 2):
            self.boundaries.step, self.boundaries.enabled = step, step == 1
            with doing(f"step {step} of {self.job.steps}") if step > 1 else contextlib.nullcontext():
                if not self._step(step):
                    break
        if self.updated:
            self._record_updates(self.updated)

    def _step(self, step: int) -> bool:
        """Forward, loss, backward, update. False where nothing more can be learnt from going on."""
        loss = self._forward(step)
        if loss is None or self.early:
            return False
        if not loss.requires_grad:
            self._check_detached(loss)
            return False
        if self.boundaries.glance and step == 1 and any(leaf not in self.leaves for leaf in map(id, leaves(loss))):
            self.trace.elsewhere = True
            return False
        self._backward(loss)
        if self.scaler.is_enabled() and not self._finite_gradients():
            self._find_scale(step, lost=not bool(loss.isfinite().all()))
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
        with self.led("backward"):
            self.scaler.scale(loss).backward()

    def _once_more(self, step: int) -> None:
        loss = self._forward(step)
        if loss is not None:
            self._backward(loss)

    def _forward(self, step: int) -> torch.Tensor | None:
        job = self.job
        for param in self.parameters.values():
            param.grad = None
        inputs = mapped(job.inputs, lambda value: state.copied(value, self.storage, model=job.model))
        if self.boundaries.disturbance is not None:
            inputs = mapped(inputs, self.boundaries.disturbance.input)
        if self.recording is not None:
            self.recording.gives(inputs)
        if self.scaler.is_enabled() or step > 1:  # only then may the forward have to be repeated
            self._rewind = self._checkpoint()
        with self._autocast(), self.boundaries.forward(), self.led("forward"):
            result = call(job.model, inputs)
            self.differentiable = any(each.requires_grad for _, each in tensors(result))
            self.boundaries.forward_done(result)
            self.result = result if self.aside is not None else None
            if job.loss is None:
                if not self.trace.records and not (self.boundaries.witness is not None and any(True for _ in tensors(result))):
                    nothing_to_compare(result)  # a witness looks at whole numbers too
                return None
            loss = scored(job.loss, result)
        check_loss(loss)
        self.recorder.add("loss", "loss", step, loss)
        return loss

    @contextlib.contextmanager
    def _autocast(self) -> Iterator[None]:
        """The precision's autocast, which begins and ends without casts of weights in its cache, as a training loop's own does.

        torch empties the cache at the end of the outermost block, which here is `undisturbed`. Casts that stayed would be used
        again: by a reentrant checkpoint in the backward pass, without a gradient (torch 2.9), or after the weights have moved.
        """
        torch.clear_autocast_cache()
        try:
            with self.precision.autocast(self.job.device) if self.precision else contextlib.nullcontext():
                yield
        finally:
            torch.clear_autocast_cache()

    def _checkpoint(self) -> Callable[[], None]:
        model, numbering = state.checkpoint(self.job.model), self.recording.marked() if self.recording else lambda: None

        def rewind() -> None:
            model()
            numbering()

        return rewind

    def _check_detached(self, loss: torch.Tensor) -> None:
        """A loss without a gradient is the user's choice where the model's result has none: of a frozen model, of one under torch.no_grad()."""
        if not (self.optimizer or self.differentiable):
            return
        why = "something on the way to it is detached, or computed under torch.no_grad()"
        if not (loss.is_floating_point() or loss.is_complex()):
            why = f"it is a tensor of {loss.dtype}, which has none"
        elif not self.named:
            why = "none of them does: requires_grad_(True)"
        raise InputError(
            f"the loss does not depend on any parameter that requires a gradient ({why}); return one that does, as in loss=lambda out: "
            "out.float().mean(), or leave the loss and the optimizer out to compare the forward pass alone"
        )

    def _finite_gradients(self) -> bool:
        gradients = (param.grad for param in self.named.values() if param.grad is not None)
        return _finite(gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients)

    def _find_scale(self, step: int, *, lost: bool) -> None:
        """Goes on under the largest loss scale under which all gradients are finite, by halvings, as GradScaler would by skipping steps.

        Where every op is watched, the runs of the search are not; what it comes to is run once more.
        """
        most = self.scaler.get_scale()
        span = max(0, round(math.log2(most)))
        if self.aside is None:
            found = fewest(span, lambda halvings: self._finite_under(step, most / 2**halvings), lost=lost)
        else:
            recorded, self.boundaries.enabled = self.boundaries.enabled, False
            with self.aside():
                found = fewest(span, lambda halvings: self._finite_under(step, most / 2**halvings), lost=lost)
            self.boundaries.enabled = recorded
            self._finite_under(step, most / 2 ** (span if found is None else found))
        self.trace.collapsed = self.trace.collapsed or found is None
        self.trace.skipped += span if found is None else found

    def _finite_under(self, step: int, scale: float) -> bool:
        """Whether the step, run again under that loss scale, has finite gradients."""
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
        if scale != 1:
            self.recorder.unscale(scale)

    def _told_by_weights(self) -> set[int]:
        """Parameters, by id, that are Inf or NaN after the step where their gradient was before it. A glance asks no more of such gradients
        than a sample tells: all weights are asked after each step."""
        if not self.boundaries.glance or self.optimizer is None or type(self.optimizer) not in _CARRYING or has_step_hooks(self.optimizer):
            return set()  # a hook may mend a gradient
        return {id(param) for group in self.optimizer.param_groups if not group.get("fused") for param in group["params"]}

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
            if master is not (param := self.named[name]):
                master.grad = None if param.grad is None else param.grad.float()
        with undecided(self.optimizer, self.recording, self.following):
            self.scaler.step(self.optimizer)
        self.scaler.update()
        with torch.no_grad():
            for name, master in self.masters.items():
                if master is not self.named[name]:
                    self.named[name].copy_(master)
        self.updated = step
        self.broken = not _finite(self.masters.values())
        if self.broken:
            self._record_updates(step)

    def aged(self, another: Callable[[], Any]) -> dict[str, tuple[float, int]]:
        """What becomes of low-format parameters that mostly stood still where they had a gradient, by name; `another` makes a shadow."""
        if self.optimizer is None:
            return {}
        pulled = [each for each in self.moved if each.parameter.grad is not None and each.parameter.grad.layout is torch.strided]
        low = [each for each in pulled if each.parameter.dtype in LOW and self._may_stand(each.name)]
        still = {id(each.parameter): each.name for each, (stuck, moving) in zip(low, self._standing(low), strict=True) if 2 * stuck > moving}
        found = optimizer_rollout.aged(self.optimizer, set(still), another)
        return {still[number]: (each.arrived, each.steps) for number, each in found.items()}

    def _may_stand(self, name: str) -> bool:
        """Whether some of its elements have not moved, by what was written down of its last move."""
        record = self.trace.records[f"update:{name}@{self.updated}"]
        return bool(record.zeros or record.nonfinite)

    def _standing(self, moved: Sequence[Moved]) -> list[list[int]]:
        """Of each, how many elements with a gradient are where they were, and how many have one."""
        counts = []
        with torch.no_grad(), no_dispatch():
            for each in moved:
                assert each.parameter.grad is not None
                pulled = sampled(self._compared(each.name, each.parameter.grad)).bool()
                still = sampled(each.start) == sampled(each.now)
                counts += [torch.count_nonzero(still.logical_and_(pulled)), torch.count_nonzero(pulled)]
            return torch.stack([count.to(counts[0].device) for count in counts]).view(-1, 2).tolist() if counts else []

    def _compared(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        """The elements of a parameter that are compared with their earlier values: all, or a sample where one is enough."""
        value = parameter.detach()
        return thinned(value) if f"update:{name}@{self.job.steps}" in self.job.sampled else value

    def _kept(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        """What of a parameter is compared, as it is now."""
        value = self._compared(name, parameter)
        return value.clone() if storage_key(value) == storage_key(parameter) else value

    def _record_updates(self, step: int) -> None:
        with no_dispatch():
            self.moved = [Moved(name, master, self._compared(name, master), self.start[name]) for name, master in self.masters.items()]
        self.recorder.moves(step, self.moved, broken=self.broken)


def _finite(parameters: Iterable[torch.Tensor]) -> bool:
    """In one pass, without a tensor of their size, asking each device once."""
    found: dict[torch.device, list[torch.Tensor]] = {}
    with no_dispatch(), torch.no_grad():
        for parameter in parameters:
            values = (torch.view_as_real(parameter) if parameter.is_complex() else parameter).detach()
            found.setdefault(values.device, []).append(values)
        return all(map(finite, found.values()))
