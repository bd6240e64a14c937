"""`python suites/bench/interrupts.py 10000`: precheck's verbs, interrupted at random moments, and what of the user's is then not as it was.

Each run is cut short by a signal whose handler raises KeyboardInterrupt, at a moment drawn evenly from the time that the verb takes; every
third is cut short a second time soon after. Compared are the model bit by bit (but for what a watched loop does to it), random states, hooks,
modes, switches, wrapped methods and signal handlers. Exits with 1 if anything was changed.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import precheck
from precheck.goldens import lifecycle
from precheck.goldens.file import write
from precheck.measurement import job_of
from precheck.observe import kernel_fixes
from precheck.torch_support import autocast

AGAIN = 0.002  # seconds, from the first interrupt to the second
Verb = Callable[[], Any]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.drop, self.outer = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.outer(self.drop(self.norm(self.inner(values))))


class Fragile(Net):
    """Overflows in float16, so that its measurement is diagnosed and a remedy is looked for."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return super().forward(values).mul(300).square().mean(-1).sqrt()


def model_state(model: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found[f"tensor {name}"] = (id(tensor), str(tensor.dtype), tensor.data_ptr(), tensor.requires_grad, tensor.detach().clone())
        found[f"gradient {name}"] = (id(tensor.grad), None if tensor.grad is None else tensor.grad.clone())
    return found


def module_state(model: nn.Module) -> dict[str, Any]:
    hooks = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
    found = {f"module {name}": (type(module), module.training, sorted(module.__dict__), *(len(getattr(module, each)) for each in hooks))
             for name, module in model.named_modules()}  # fmt: skip
    held = {name: (parameter._post_accumulate_grad_hooks, parameter._backward_hooks) for name, parameter in model.named_parameters()}
    return found | {f"hooks of {name}": tuple(len(each or ()) for each in both) for name, both in held.items()}


def random_state() -> dict[str, Any]:
    return {"torch's generator": torch.get_rng_state(), "random": hash(random.getstate()), "numpy": numpy.random.get_state()[1].tobytes()}


def process_state() -> dict[str, Any]:
    backends = torch.backends
    switches = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    wrapped = ((torch.amp.GradScaler, "step"), (torch.amp.GradScaler, "__init__"), (torch.optim.Optimizer, "load_state_dict"))
    return {
        "gradient modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled(), nesting),
        "switches": (torch.get_float32_matmul_precision(), backends.mkldnn.enabled, *(switch.fp32_precision for switch in switches)),
        "TorchScript's executor": torch._C._get_graph_executor_optimize(),
        "dispatch modes": list(map(id, _get_current_dispatch_mode_stack())),
        "function modes": list(map(id, _get_current_function_mode_stack())),
        "torch dispatch": torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python),
        "global hooks": [len(each) for each in (
            modules._global_forward_hooks, modules._global_forward_pre_hooks, modules._global_backward_hooks,
            optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)],
        "wrapped methods": [owner.__dict__[name].__qualname__ + str(hasattr(owner.__dict__[name], "__wrapped__")) for owner, name in wrapped],
        "overridden kernels": (autocast._policy.open, kernel_fixes._of_any.open, kernel_fixes._of_float16.open),
        "swapping": torch.utils.swap_tensors.__module__,
        "warnings": len(warnings.filters),
        "handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM, signal.SIGTERM)],
    }  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, (tuple, list)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


class Interrupts:
    """A signal's handler that raises as often as it is told to."""

    def __init__(self) -> None:
        self.left = 0
        signal.signal(signal.SIGALRM, self._raise)

    def _raise(self, number: int, frame: Any) -> None:
        if self.left > 0:
            self.left -= 1
            raise KeyboardInterrupt

    def during(self, verb: Verb, delay: float, times: int) -> BaseException | None:
        """What `verb` raised when it was interrupted after `delay` seconds, and once more where `times` is 2."""
        raised: BaseException | None = None
        try:
            try:
                self.left = times
                signal.setitimer(signal.ITIMER_REAL, delay, AGAIN)
                verb()
            finally:
                self.left = 0
        except BaseException as error:
            raised = error
            self.left = 0
        signal.setitimer(signal.ITIMER_REAL, 0)
        return raised


class Subject:
    """A model, what is done with it, and what may not be changed by that."""

    def __init__(self, name: str, make: Callable[[], nn.Module], act: Callable[[nn.Module], Any], *, keeps: bool = True) -> None:
        self.name, self.make, self.act, self.keeps = name, make, act, keeps
        self.renew()
        self.act(self.model)  # what is made only once is made
        began = time.perf_counter()
        self.act(self.model)
        self.seconds = time.perf_counter() - began
        self.renew()

    def renew(self) -> None:
        torch.set_grad_enabled(True)
        self.model = self.make()
        self.model(torch.randn(8, 16)).sum().backward()

    def run(self) -> None:
        self.act(self.model)

    def state(self) -> dict[str, Any]:
        return process_state() | module_state(self.model) | (model_state(self.model) | random_state() if self.keeps else {})


def subjects(folder: Path) -> list[Subject]:
    values, golden = torch.randn(8, 16), folder / "net.safetensors"
    given: dict[str, Any] = {"loss": lambda result: result.square().mean(), "optimizer": lambda held: torch.optim.AdamW(held, lr=1e-3), "steps": 2}
    write(golden, lifecycle.record(job_of(Net(), values, **given)))

    def loop(model: nn.Module) -> None:
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", init_scale=8.0)
        with precheck.watch(model, precision="bf16-mixed"):
            for _ in range(2):
                scaler.scale(model(values).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()

    def measured(precision: str) -> Callable[[nn.Module], Any]:
        return lambda model: precheck.measure(model, values, precision=precision, **given)

    names = "bf16-true", "16-mixed", "bf16-mixed", "bf16-master", "tf32"
    return [
        *(Subject(f"measure {name}", Net, measured(name)) for name in names),
        Subject("measure and diagnose 16-true", Fragile, lambda model: precheck.measure(model, values, precision="16-true")),
        Subject("check bf16-true", Net, lambda model: precheck.check(model, values, golden=golden, precision="bf16-true", ops=True, **given)),
        Subject("remedy 16-true", Fragile, lambda model: precheck.remedy(model, values, precision="16-true", most=4)),
        Subject("watch", Net, loop, keeps=False),
    ]


def place(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "precheck" in frame.filename]
    return f"{type(error).__name__} at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else type(error).__name__


def main() -> int:
    parser = argparse.ArgumentParser(prog="python suites/bench/interrupts.py", description=__doc__)
    parser.add_argument("interrupts", nargs="?", type=int, default=10_000, help="how many (default: 10000)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    chance, interrupts = random.Random(asked.seed), Interrupts()
    cut, changed = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        sys.unraisablehook = lambda _: None  # Python drops what is raised where an object dies, outside of any verb too
        held = subjects(Path(folder))
        while sum(cut.values()) < asked.interrupts:
            subject = chance.choice(held)
            before = subject.state()
            error = interrupts.during(subject.run, chance.uniform(0.0005, subject.seconds), chance.choice((1, 1, 2)))
            after = subject.state()
            differs = [name for name in {**before, **after} if not same(before.get(name), after.get(name))]
            cut[subject.name] += error is not None
            if error is not None and type(error) is not KeyboardInterrupt:
                changed[f"{subject.name}: {error!r}"[:150] + f" ({place(error)})"] += 1
            if differs:
                changed[f"{subject.name}: {', '.join(differs[:4])} ({place(error) if error else 'not interrupted'})"] += 1
                subject.renew()
    for name, count in cut.items():
        print(f"{count:6} interrupts of {name}")
    print(f"{cut.total():6} interrupts, {changed.total()} of which left something changed")
    for words, count in changed.most_common():
        print(f"{count:6} {words}")
    return int(changed.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
