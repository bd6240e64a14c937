"""Carrying ops out again: which may be, what is followed of the run's decisions, and what is left aside and said to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from beside import normal, off, same, seen
from torch import nn
from torch.nn import functional

import precheck
from precheck.observe.shadow.replaying.replay import LOW, OpCall, Replay, plan

aten = torch.ops.aten
RUNS: list[torch.dtype] = []


@torch.library.custom_op("precheck_suite::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    RUNS.append(x.dtype)
    return x * 2


@torch.library.custom_op("precheck_suite::grow", mutates_args=("x",))
def grow(x: torch.Tensor) -> None:
    RUNS.append(x.dtype)
    x.add_(1)


def test_an_op_of_another_library_runs_once() -> None:
    """It may count, send, or read its input's bytes as bfloat16: the shadow begins again, and the report says how much it covers."""
    RUNS.clear()
    x = normal(8).bfloat16()
    with precheck.watch() as report:
        y = twice(x * 1.1)
        grow(y)
        assert same(seen(y), y.float())
        z = y * 1.1
        assert same(seen(z), y.float() * 1.1)
    assert RUNS == [torch.bfloat16] * 2
    assert report.facts["opaque"] == {"precheck_suite.twice.default": 1, "precheck_suite.grow.default": 1}
    assert report.facts["covered"] == pytest.approx(1 - 2 / report.facts["shadowed"])


def test_an_op_of_higher_order_is_said_to_be_left_aside() -> None:
    def counted(x: torch.Tensor) -> torch.Tensor:
        return torch._higher_order_ops.while_loop(lambda x: x.sum() < 4, lambda x: (x + 1,), (x,))[0]

    x = normal(4).bfloat16()
    plain = counted(x)
    with precheck.watch() as report:
        watched = counted(x)
    assert torch.equal(watched, plain)
    assert report.facts["opaque"] == {"while_loop": 1}


def test_a_branch_of_torch_cond_is_followed_and_trains_the_weights_that_it_uses() -> None:
    """torch.cond compiles its branches to find these weights. A watched run compiles nothing, and lost their gradients."""
    layer, x = torch.nn.Linear(4, 4).bfloat16(), normal(2, 4).bfloat16()

    def gradient() -> torch.Tensor | None:
        layer.zero_grad()
        torch.cond(x.sum() > 0, layer, lambda x: layer(x) * 2, (x,)).sum().backward()
        return layer.weight.grad

    plain = gradient()
    with precheck.watch() as report:
        watched = gradient()
    assert plain is not None
    assert watched is not None
    assert torch.equal(watched, plain)
    assert not report.facts.get("opaque")


def test_a_failing_replay_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> Any:
        raise MemoryError("no room for a reference")

    x, y = normal(8).bfloat16(), normal(8, seed=1).bfloat16()
    plain = (x * y).exp()
    monkeypatch.setattr(Replay, "call", broken)
    with precheck.watch() as report:
        watched = (x * y).exp()
    assert torch.equal(watched, plain)
    assert {row.opaque for row in report.ops} == {"MemoryError: no room for a reference"}


def test_a_failing_look_at_the_inputs_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> Any:
        raise RuntimeError("out of bounds")

    monkeypatch.setattr("precheck.observe.shadow.memory.cells.Memory.view", broken)
    x = normal(8).bfloat16()
    with precheck.watch() as report:
        watched = x * 2
    assert torch.equal(watched, x + x)
    assert {row.opaque for row in report.ops} == {"RuntimeError: out of bounds"}


# `x` is rounded so that its order differs from the reference's: every choice below comes out otherwise in float32.
CLOSE = torch.tensor([[1.0, 1.0 + 2**-12, 0.5, 0.0], [0.25, 0.25 + 2**-14, -1.0, 0.125]])


def low_scores() -> torch.Tensor:
    return CLOSE.bfloat16()


CHOICES: dict[str, Any] = {
    "topk": lambda x: x.topk(2, -1), "sort": lambda x: x.sort(-1), "descending sort": lambda x: x.sort(-1, descending=True),
    "max": lambda x: x.max(-1), "min": lambda x: x.min(0), "median": lambda x: x.median(-1), "kthvalue": lambda x: x.kthvalue(2, -1),
    "cummax": lambda x: x.cummax(-1), "max, dimension kept": lambda x: x.max(1, keepdim=True),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CHOICES))
def test_values_chosen_by_index_follow_the_runs_indices(name: str) -> None:
    with precheck.watch() as report:
        values, where = CHOICES[name](low_scores())
        shadow = seen(values)
    dim = 0 if name == "min" else -1
    index = where if where.dim() == 2 else where.unsqueeze(dim)
    assert torch.equal(shadow, CLOSE.gather(dim, index).reshape(shadow.shape))
    assert report.facts["opaque"] == {}


def test_pooling_follows_the_runs_places() -> None:
    with precheck.watch():
        values, where = functional.max_pool2d(low_scores().reshape(1, 1, 2, 4), 2, return_indices=True)
        shadow = seen(values)
    assert torch.equal(shadow.flatten(), CLOSE.flatten()[where.flatten()])


def test_flipped_choices_are_counted() -> None:
    """1 and 1 + 2^-12 are one number in bfloat16: the run takes the first, the reference the second. So with 0.25."""
    with precheck.watch() as report:
        low_scores().argmax(-1)
    (row,) = [row for row in report.ops if "argmax" in row.op]
    assert row.flips == 2


def test_a_kink_is_on_the_runs_side() -> None:
    """-2^-30 and 2^-30 round to themselves, but 1 + 2^-30 - 1 is 0 in the run: its gradient is zero there, and so the shadow's."""
    x = torch.full((4,), 2**-10).bfloat16().requires_grad_()
    with precheck.watch():
        hidden = (x + 1) - 1
        functional.relu(hidden).sum().backward()
        assert x.grad is not None
        assert same(seen(x.grad), x.grad.float())
        assert not x.grad.any()
        assert not same(seen(hidden), hidden.float())


def test_what_a_rounding_function_gives_is_the_runs() -> None:
    x = torch.tensor([0.4999, 1.4999]).bfloat16()  # 0.5 and 1.5
    with precheck.watch() as report:
        y = torch.tensor([0.4999, 1.4999])
        low = y.bfloat16()
        rounded = low.round()
        assert same(seen(rounded), rounded.float())
    assert torch.equal(rounded, x.round())
    assert sum(row.flips for row in report.ops if "round" in row.op) == 1  # to even: 0 either way, but 2 and not 1


def test_numbers_that_python_took_come_from_the_run() -> None:
    """`.item()` leaves the tensors: what is made of it is the same in both programs."""
    with precheck.watch():
        low = torch.tensor([1.001]).bfloat16()
        scale = low.item()
        y = torch.ones(2).bfloat16() * scale
        assert seen(y).tolist() == [1.0, 1.0]


def test_softmax_into_float32_and_dtypes_as_arguments() -> None:
    """Arguments that name a dtype name the reference's in the replay; CUDA's softmax from half to float is a softmax in float."""
    x = normal(3, 5)
    with precheck.watch() as report:
        low = x.bfloat16()
        assert same(seen(low.softmax(-1, dtype=torch.float32)), x.softmax(-1))
        assert same(seen(low.sum(-1, dtype=torch.bfloat16)), x.sum(-1))
        assert same(seen(low.new_ones(3).to(torch.float16) / 3), torch.ones(3) / 3)
        weights = torch.ones(3, 5).bfloat16().requires_grad_()
        (weights * low).log_softmax(-1, dtype=torch.float32).sum().backward()
    assert report.facts["opaque"] == {}


def test_half_to_float_in_a_kernels_own_words() -> None:
    func = aten._softmax.default
    x = normal(2, 3)
    made = Replay(torch.float32, LOW).call(OpCall(func, plan(func), (x.half(), -1, True), {}), lambda tensor: x)
    assert torch.equal(made[0], x.softmax(-1))


def test_schemas_are_read() -> None:
    assert plan(aten.view.default).passes
    assert plan(aten.empty_strided.default).passes
    assert plan(aten.new_empty_strided.default).passes
    assert plan(aten._efficientzerotensor.default).passes
    assert not plan(aten.clone.default).passes
    assert plan(aten._foreach_add_.List).written == (0,)
    assert plan(aten.add.out).written_names == ("out",)
    assert plan(aten.native_batch_norm.default).written == (3, 4)
    assert plan(aten.matmul.default).composite
    assert not plan(aten.mm.default).composite
    assert plan(aten.div.Tensor_mode).steps
    assert not plan(aten.div.Tensor).steps


@pytest.mark.parametrize(("p", "draws"), [(0.0, False), (0.1, True)])
def test_the_tag_of_random_ops_is_believed_where_they_draw(p: float, draws: bool) -> None:
    attention, dropout = plan(aten._scaled_dot_product_flash_attention_for_cpu.default), plan(aten.native_dropout.default)
    x = normal(1)
    assert OpCall(None, attention, (x, x, x), {"dropout_p": p}).draws() is draws
    assert OpCall(None, attention, (x, x, x, p), {}).draws() is draws
    assert OpCall(None, dropout, (x, p, True), {}).draws() is draws
    assert not OpCall(None, dropout, (x, p, False), {}).draws()
    assert OpCall(None, plan(aten.bernoulli_.float), (x,), {}).draws()
    assert not OpCall(None, plan(aten.mul.Tensor), (x, x), {}).draws()


@pytest.mark.filterwarnings("ignore")  # what torch.distributed warns of on one process is its own affair
def test_what_has_no_float64_kernel_is_replayed_in_float32() -> None:
    """The reference of float32 itself is float64; beside tf32's error of 1e-3, float32's 1e-7 is none."""
    a, b, ends = normal(4, 16), normal(2, 16, 8, seed=1), torch.tensor([2, 4], dtype=torch.int32)
    with precheck.watch(precision="tf32") as report:
        own = torch._grouped_mm(a, b, offs=ends)
        shadow = seen(own)
    assert report.facts["opaque"] == {}
    assert shadow.dtype is torch.float64
    exact = torch.cat([a[:2].double() @ b[0].double(), a[2:].double() @ b[1].double()])
    assert off(shadow, exact) < 1e-6


def test_collectives_are_never_made_twice(tmp_path: Path) -> None:
    """A second all-reduce on one rank alone would wait for ever; what comes from other ranks is exact."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_gloo_available()):
        pytest.skip("torch was built without gloo")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    try:
        with precheck.watch() as report:
            x = normal(8).bfloat16()
            pending = distributed.all_reduce(x, async_op=True)
            pending.wait()
            assert same(seen(x), x)
            model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2).bfloat16())
            model(normal(3, 8).bfloat16()).float().sum().backward()
    finally:
        distributed.destroy_process_group()
    assert report.facts["opaque"] == {}
