"""`interrupts.held`: what a signal's handler raises waits while something is switched or put back, and nothing is left changed."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import precheck
from precheck import interrupts
from precheck.measurement import job_of
from precheck.observe.models import float32_parts
from precheck.observe.timing.contestant import borrowed
from precheck.precisions import resolve
from precheck.torch_internals import nesting
from precheck.torch_support import autocast

SWITCH = """
import signal

class Switch:
    def __enter__(self):
        signal.raise_signal(signal.SIGINT)
        reached.append("switched on")

    def __exit__(self, *raised):
        signal.raise_signal(signal.SIGINT)
        reached.append("switched off")
"""

SPREAD = 100
"""Lines at which a block is interrupted, evenly spread, beside the last twenty."""

SOURCE = """
def traced(frame, event, argument):
    if event == "line":
        arrived()
    return traced
"""
"""A tracer is a frame of its own, which a signal does not have. In contextlib's name it changes nothing: whose a context manager is, the frame
inside contextlib's tells, and where there is none, contextlib itself is at work."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.kept = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.kept.keep_in_float32 = True  # type: ignore[assignment]

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.kept(self.norm(self.layer(values)))


@pytest.fixture(autouse=True)
def _keyboard() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where these tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    model = Net()
    model(torch.randn(8, 4)).sum().backward()
    return model


def state(model: nn.Module) -> dict[str, Any]:
    torn = {name: (id(each), each.data_ptr(), each.dtype, id(each.grad), each._version) for name, each in model.state_dict(keep_vars=True).items()}
    inside = {name: (type(each), each.training, len(each._forward_hooks), sorted(vars(each))) for name, each in model.named_modules()}
    backends = torch.backends
    return torn | inside | {
        "random": (torch.get_rng_state().tolist(), random.getstate()),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), autocast._policy.open),
        "switches": (torch._C._get_graph_executor_optimize(), torch.get_float32_matmul_precision(), backends.cudnn.allow_tf32,
                     backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision),
        "modes": _get_current_dispatch_mode_stack(),
        "hooks": (len(modules._global_forward_hooks), len(modules._global_forward_pre_hooks), len(optimizers._global_optimizer_pre_hooks)),
        "methods": (torch.amp.GradScaler.step, torch.utils.swap_tensors),
        "handler": signal.getsignal(signal.SIGINT),
        "limit": sys.getrecursionlimit(),
    }  # fmt: skip


def borrow(model: nn.Module) -> AbstractContextManager[Any]:
    return borrowed(job_of(model, torch.ones(2, 4)))


def watch(model: nn.Module) -> AbstractContextManager[Any]:
    return precheck.watch(model, precision="tf32")


def keep(model: nn.Module) -> AbstractContextManager[Any]:
    return float32_parts.exempted(model, ["layer"])


def cast(model: nn.Module) -> AbstractContextManager[Any]:
    return resolve("fp8-e4m3-mixed").autocast()


@contextlib.contextmanager
def at_line(number: int, *, times: int = 1) -> Iterator[list[int]]:
    """SIGINT arrives when the block, and all that it calls, has come to its line of that number; gives how many lines there were."""
    lines = [0]

    def arrived() -> None:
        lines[0] += 1
        if number <= lines[0] < number + times:
            signal.raise_signal(signal.SIGINT)

    scope: dict[str, Any] = {"arrived": _unseen(arrived)}
    exec(compile(SOURCE, contextlib.__file__, "exec"), scope)
    before = sys.gettrace()
    sys.settrace(scope["traced"])
    try:
        yield lines
    finally:
        sys.settrace(before)


def _unseen(function: Callable[[], None]) -> Callable[[], None]:
    code: CodeType = function.__code__.replace(co_filename=contextlib.__file__)
    function.__code__ = code
    return function


def used(block: Callable[[nn.Module], AbstractContextManager[Any]], model: nn.Module, number: int, times: int = 1) -> int:
    with at_line(number, times=times) as lines, block(model):
        pass
    return lines[0]


def nothing_is_handled() -> None:
    """Where a tracer raises in an except block, Python goes on as if it handled that exception, and shows it with all that are raised later.

    What a generator handles is its own, so this is no fixture.
    """
    ctypes.pythonapi.PyErr_SetHandledException(ctypes.py_object(None))


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage of others is collected: what Python calls then ignores the interrupt, with a warning."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.filterwarnings("ignore:Exception ignored.*Block:pytest.PytestUnraisableExceptionWarning")  # an interrupt before a block is entered
@pytest.mark.usefixtures("uncollected")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 cannot be told that it handles no exception any more")
@pytest.mark.parametrize("block", [borrow, watch, keep, cast], ids=lambda block: block.__name__)
@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_at_any_line_leaves_nothing_changed(net: Net, block: Any, times: int) -> None:
    used(block, net, -9)  # what is made only once is made
    before, lines = state(net), used(block, net, -9)
    assert lines > 100
    cut = 0
    for number in itertools.chain(range(1, lines, 1 + lines // SPREAD), range(lines - 20, lines)):
        try:
            assert used(block, net, number, times) < number  # a run may have some lines fewer
        except KeyboardInterrupt:
            cut += 1
        nothing_is_handled()
        assert state(net) == before, number
    assert cut > 90


def test_asking_how_deep_autocasts_nest_is_not_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch tells it only to those who make it one deeper, and then one less deep again."""
    before, undo = nesting(), torch.autocast_decrement_nesting

    def late() -> int:
        signal.raise_signal(signal.SIGINT)
        return undo()

    with monkeypatch.context() as patch:
        patch.setattr(torch, "autocast_decrement_nesting", late)
        with pytest.raises(KeyboardInterrupt), interrupts.held():
            nesting()
    assert nesting() == before


def test_it_does_not_wait_for_the_end_of_the_block() -> None:
    """Here it arrives while torch switches something: it is raised in the code that follows."""
    reached: list[str] = []
    scope: dict[str, Any] = {"reached": reached}
    exec(compile(SWITCH, torch.__file__, "exec"), scope)

    def block() -> None:
        with interrupts.held(), scope["Switch"]():
            reached.append("the block")
            end = time.monotonic() + 30.0
            while time.monotonic() < end:
                time.sleep(1e-3)  # an empty loop in a with statement loses its __exit__ on Python 3.13.0

    with pytest.raises(KeyboardInterrupt):
        block()
    assert reached == ["switched on", "the block", "switched off"]


def test_in_the_users_code_it_is_raised_at_once() -> None:
    reached = []

    def block() -> None:
        with interrupts.held():
            signal.raise_signal(signal.SIGINT)
            reached.append("what follows")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert not reached


def test_a_context_manager_of_the_users_may_be_interrupted_at_any_time() -> None:
    @contextlib.contextmanager
    def waiting() -> Iterator[None]:
        signal.raise_signal(signal.SIGINT)
        reached.append("what follows")
        yield

    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt), interrupts.held(), waiting():
        reached.append("the block")
    assert not reached


def test_the_users_own_handlers_are_called_at_once_and_put_back() -> None:
    """Also one that raises nothing, as asyncio's first does; and those of signals that a timeout uses."""
    told: list[int] = []

    def handler(number: int, frame: Any) -> None:
        told.append(number)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGALRM)}
    try:
        with interrupts.held(), interrupts.held():
            for number in before:
                signal.raise_signal(number)
            assert told == list(before)
        assert [signal.getsignal(number) for number in before] == [handler, handler]
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def test_a_handler_that_the_block_sets_stays() -> None:
    before = signal.getsignal(signal.SIGINT)
    mine = lambda number, frame: None  # noqa: E731
    try:
        with interrupts.held():
            around = signal.signal(signal.SIGINT, mine)
            with interrupts.held():
                signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is mine
        assert signal.getsignal(signal.SIGINT) is mine
        signal.signal(signal.SIGINT, around)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_blocks_may_end_in_any_order() -> None:
    before = signal.getsignal(signal.SIGINT)
    one, other = interrupts.held(), interrupts.held()
    one.__enter__()
    other.__enter__()
    one.__exit__()
    assert signal.getsignal(signal.SIGINT) is not before
    other.__exit__()
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_have_no_signals_and_touch_no_handlers() -> None:
    found = []

    def block() -> None:
        with interrupts.held():
            found.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert found == [before]
