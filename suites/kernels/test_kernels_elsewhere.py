"""The same kernel on another stream, and the memory that it returns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import precheck
from precheck.kernels import protocol
from precheck.kernels.clock import threads

X = torch.linspace(-2, 2, 24).view(4, 6)
ROWS = {
    "itself": (lambda x: x, lambda x: x.clone()),
    "a view": (lambda x: x.reshape(-1), lambda x: torch.cat([x.flatten()])),
    "one output of two": (lambda x: (x.exp(), x.mT), lambda x: (x.exp(), x.mT.contiguous())),
}


@pytest.mark.parametrize("name", ROWS)
def test_an_output_in_the_memory_of_an_input_is_a_fault(name: str) -> None:
    candidate, reference = ROWS[name]
    report = precheck.compare_kernels(candidate, reference, X, trials=40)
    assert [finding.rule for finding in report.errors] == ["kernel-mutation"], report.summary()
    assert " is in the memory of an input; the reference returns memory of its own" in report.errors[0].message


@pytest.mark.parametrize("name", ROWS)
def test_it_is_none_where_the_reference_returns_that_memory_too_nor_where_only_the_reference_does(name: str) -> None:
    view, copy = ROWS[name]
    for candidate in (lambda *args: view(*args), copy):
        report = precheck.compare_kernels(candidate, view, X, trials=40)
        assert not report.errors, report.summary()


def test_what_is_wrong_is_told_before_whose_memory_it_is() -> None:
    report = precheck.compare_kernels(lambda x: x, torch.relu, X, trials=10)
    assert [finding.rule for finding in report.errors] == ["kernel-contract"], report.summary()


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the calls of now are on another stream, on a device that this test makes up."""
    there: list[bool] = []

    @contextlib.contextmanager
    def another(device: torch.device) -> Iterator[None]:
        there.append(True)
        yield
        there.clear()

    monkeypatch.setattr(protocol, "cuda_device", lambda tensors: torch.device("cpu"))
    monkeypatch.setattr(protocol, "another_stream", another)
    return there


def test_a_kernel_that_is_wrong_on_another_stream_alone_is_told_so(stream: list[bool]) -> None:
    def early(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.full_like(x, torch.nan) if stream else x)

    report = precheck.compare_kernels(early, torch.relu, X, trials=70)
    assert [finding.rule for finding in report.errors] == ["kernel-nondeterminism"], report.summary()
    assert "it is wrong on another stream alone" in report.errors[0].message
    report = precheck.compare_kernels(lambda x: torch.relu(x), torch.relu, X, trials=70)
    assert not report.errors, report.summary()
    assert "another stream" not in report.facts["not_looked_at"]
    report = precheck.compare_kernels(lambda x: early(x), lambda x: early(x), X, trials=70)
    assert not report.errors, report.summary()


def test_the_other_stream_waits_for_this_one_is_busy_and_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Stream:
        def __init__(self, device: Any = None, name: str = "new") -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            said.append(f"{self.name} waits for {other.name}")

    @contextlib.contextmanager
    def inside(stream: Stream) -> Iterator[None]:
        said.append(f"on {stream.name}")
        yield
        said.append(f"off {stream.name}")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(name="present"))
    monkeypatch.setattr(torch.cuda, "stream", inside)
    monkeypatch.setattr(protocol, "keep_busy", lambda device: said.append("busy"))
    with protocol.another_stream(torch.device("cuda")):
        said.append("call")
    assert said == ["new waits for present", "on new", "busy", "call", "off new", "present waits for new"]


def _on_default(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Runs on the default stream, whatever stream is current, as a kernel that is launched without one."""

    def kernel(x: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(torch.cuda.default_stream()):
            return function(x)

    return kernel


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_kernel_that_is_launched_on_the_default_stream_is_told_so_on_a_device() -> None:
    report = precheck.compare_kernels(_on_default(lambda x: x.exp()), torch.exp, X.cuda(), gradients=False)
    assert [finding.rule for finding in report.errors] == ["kernel-nondeterminism"], report.summary()
    report = precheck.compare_kernels(lambda x: x.exp(), torch.exp, X.cuda())
    assert not report.errors, report.summary()
    assert report.facts["speed"]["times_as_fast"] > 0
    assert "not_looked_at" not in report.facts


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_factories_of_both_sides_make_tensors_on_the_users_default_device(factor: float) -> None:
    """And those of the judge on the CPU."""

    def candidate(x: torch.Tensor) -> torch.Tensor:
        assert torch.empty(1).is_meta, "the user's default device"
        return x.exp() * factor

    with torch.device("meta"):
        report = precheck.compare_kernels(candidate, torch.exp, X, trials=40)
        assert torch.empty(1).is_meta
    assert bool(report.errors) is (factor > 1), report.summary()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_kernel_on_a_device_is_judged_as_on_a_cpu(dtype: torch.dtype) -> None:
    x = X.to("cuda", dtype)

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        powers = (x.float() - x.float().amax(-1, keepdim=True)).exp()
        return (powers / powers.sum(-1, keepdim=True)).to(x.dtype)

    report = precheck.compare_kernels(by_hand, lambda x: x.softmax(-1), x, trials=40)
    assert not report.errors, report.summary()
    report = precheck.compare_kernels(lambda x: x.softmax(0), lambda x: x.softmax(-1), x, trials=10)
    assert report.verdict == "different"


@pytest.mark.parametrize("copies", [False, True])
def test_where_there_is_nothing_to_do_what_was_given_is_not_handed_back(copies: bool) -> None:
    """Rows are filled up to four numbers. Full ones may be a caller's own memory, but for one that returns memory of its own otherwise."""

    def kernel(x: torch.Tensor) -> torch.Tensor:
        more = -x.shape[1] % 4
        return torch.nn.functional.pad(x, (0, more)) if more or copies else x

    def reference(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x.new_zeros(len(x), -x.shape[1] % 4)], 1)

    report = precheck.compare_kernels(kernel, reference, torch.ones(3, 7), trials=130)
    assert not report.errors, report.summary()
    assert [finding.rule for finding in report.findings] == ["kernel-mutation"] * (not copies)
    assert copies or "output of shape (3, 8) is in the memory of an input" in report.summary()


@pytest.mark.parametrize("wrong", [False, True])
def test_the_candidate_alone_is_called_with_other_threads(wrong: bool) -> None:
    """Each op of a reference with two threads waits for the second one, which on a busy machine takes longer than all the rest."""
    called: dict[str, set[int]] = {"candidate": set(), "reference": set()}

    def candidate(x: torch.Tensor) -> torch.Tensor:
        called["candidate"].add(torch.get_num_threads())
        return x * (1 + wrong * (torch.get_num_threads() > 1))

    def reference(x: torch.Tensor) -> torch.Tensor:
        called["reference"].add(torch.get_num_threads())
        return x * 1

    with threads(1):
        report = precheck.compare_kernels(candidate, reference, X, trials=60)
    assert called == {"candidate": {1, 2}, "reference": {1, 2} if wrong else {1}}  # with two it is asked whether it has the same fault
    assert [finding.rule for finding in report.errors] == ["kernel-nondeterminism"] * wrong, report.summary()
