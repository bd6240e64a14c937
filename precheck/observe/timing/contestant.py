"""A plain training step of a user's model under a precision, with nothing but what the user's own loop would run."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import torch

from precheck.formats import TF32
from precheck.observe import state
from precheck.observe.containers import call, mapped, scored, tensors
from precheck.observe.job import Job
from precheck.observe.models import float32_parts
from precheck.observe.recording.module_hooks import Boundaries, interpreted
from precheck.observe.records import Trace
from precheck.observe.run import prepare, rnn_kernels, undisturbed
from precheck.observe.setting import low
from precheck.observe.training import Training
from precheck.precisions import Precision
from precheck.torch_support import float32

TF32_SINCE = (8, 0)
"""The compute capability from which tensor cores support tf32. Older devices compute in float32 even if tf32 is allowed."""


@contextlib.contextmanager
def borrowed(job: Job) -> Iterator[None]:
    """Inside, contestants may put their weights under the user's model. Afterwards the model is restored.
    A torch.compile model is compiled for each precision. TorchScript runs op by op, since code that it compiles for one precision fails under
    another.
    """
    kept = state.preserved(job.model, job.loss)
    with kept, undisturbed(job.device), float32.products(tf32=False), float32_parts.set_apart(job.model), interpreted():
        yield


class Contestant:
    """The weights, optimizer and loss scale of one precision, on which the user's own modules run. Make it inside `borrowed`."""

    def __init__(self, job: Job, precision: Precision) -> None:
        self.job, self.inputs = job, job.inputs
        self.precision = dataclasses.replace(precision, policy="native")  # CUDA's op list on a CPU goes through Python
        self.setting = low(self.precision)
        with state.preserved(job.model, job.loss):
            given = [(param, param.data) for param in dict.fromkeys(job.model.parameters())]
            prepare(job, self.setting)
            self.weights = [(param, param.data, start) for param, start in given]
            parts = Training(job, Boundaries(job.model, Trace(), self.setting), self.setting)
            self.named, self.masters, self.optimizer, self.scaler = parts.named, parts.masters, parts.optimizer, parts.scaler
            self.buffers = list(job.model.buffers())
            self.restore = state.checkpoint(job.model, job.loss)

    @property
    def emulated(self) -> bool:
        """Whether its format is emulated here, so that time and memory say nothing about the format."""
        native = self.precision.gemm is TF32 and self.job.device == "cuda" and torch.cuda.get_device_capability() >= TF32_SINCE
        return self.precision.gemm is not None and not native

    @property
    def held(self) -> int:
        """Bytes that stay allocated between steps: weights, master copies, buffers, optimizer states, inputs."""
        kept = [own for _, own, _ in self.weights] + [master.data for master in self.masters.values()] + self.buffers
        kept += [tensor for _, tensor in tensors(self.inputs)]
        if self.optimizer is not None:
            kept += [tensor for _, tensor in tensors(dict(self.optimizer.state))]
        return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}.values())

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        """Inside, the user's model has this contestant's initial weights and random state, whatever steps were made before."""
        self.restore()
        with torch.no_grad():
            for param, own, start in self.weights:
                param.grad = None
                param.data = own
                own.copy_(start)
            for name, master in self.masters.items():
                if master is not self.named[name]:
                    master.grad = None
                    master.copy_(self.named[name])
        self.inputs = mapped(self.job.inputs, lambda value: state.copied(value, self.setting.dtype, model=self.job.model))
        with rnn_kernels(self.job, self.setting), self.precision.step(self.job.device):
            yield

    def step(self) -> None:
        """One step: forward, loss, backward, update. Without a loss, only the forward pass, without gradients."""
        job = self.job
        with torch.set_grad_enabled(job.loss is not None), self.precision.autocast(job.device):
            result = call(job.model, self.inputs)
            loss = scored(job.loss, result) if job.loss else None
        torch.clear_autocast_cache()  # as at the end of an outermost autocast block, which this one is not
        if loss is None or not loss.requires_grad:
            return
        self.scaler.scale(loss).backward()
        if self.optimizer is not None:
            self._update(self.optimizer)
        for param in self.named.values():
            param.grad = None

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        apart = [(master, self.named[name]) for name, master in self.masters.items() if master is not self.named[name]]
        for master, param in apart:
            master.grad = None if param.grad is None else param.grad.float()
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad()  # may clear more than gradients, such as those of each sample
        with torch.no_grad():
            for master, param in apart:
                param.copy_(master)

    def calibrated(self) -> bool:
        """Makes a step. Returns whether the loss scale did not fall, so that later steps will be like this one."""
        before = self.scaler.get_scale()
        with self.placed():
            self.step()
        return self.scaler.get_scale() >= before
