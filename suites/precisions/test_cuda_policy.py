"""`*-mixed` on a CPU: each op answers in the dtype that CUDA's autocast list (torch.amp, "CUDA Op-Specific Behavior") gives it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from precheck.observe.recording.module_hooks import interpreted
from precheck.precisions import resolve
from precheck.torch_internals import has_kernel
from precheck.torch_support.autocast import cuda_policy_on_cpu

Op = Callable[[torch.Tensor], torch.Tensor]
EYE = torch.eye(4)
LABELS = torch.tensor([0, 1, 2, 3])

FLOAT32: dict[str, Op] = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "rms_norm": lambda x: F.rms_norm(x, (4,)),
    "group_norm": lambda x: F.group_norm(x[None], 2),
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "pow": lambda x: x**2,
    "pow of tensors": lambda x: x**x,
    "scalar to a power": lambda x: 2.0**x,
    "reciprocal": torch.reciprocal,
    "rsqrt": torch.rsqrt,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tan": torch.tan,
    "acos": torch.acos,
    "asin": torch.asin,
    "erfinv": torch.erfinv,
    "softplus": F.softplus,
    "sum": torch.sum,
    "sum of rows": lambda x: x.sum(-1),
    "prod": torch.prod,
    "cumsum": lambda x: x.cumsum(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "norm": torch.norm,
    "vector_norm": torch.linalg.vector_norm,
    "matrix_norm": torch.linalg.matrix_norm,
    "logsumexp": lambda x: x.logsumexp(-1),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x),
    "cdist": lambda x: torch.cdist(x, x),
    "pdist": torch.pdist,
    "dist": lambda x: torch.dist(x, x),
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "cross_entropy": lambda x: F.cross_entropy(x, LABELS),
    "nll_loss": lambda x: F.nll_loss(x, LABELS),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "l1_loss": lambda x: F.l1_loss(x, x),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x),
    "huber_loss": lambda x: F.huber_loss(x, x),
    "kl_div": lambda x: F.kl_div(x, x, reduction="batchmean"),
    "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, x),
    "interpolate": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
}  # fmt: skip
LOW: dict[str, Op] = {
    "mm": lambda x: torch.mm(x, EYE),
    "matmul": lambda x: x @ EYE,
    "bmm": lambda x: torch.bmm(x[None], EYE[None]),
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], EYE[None]),
    "addmm": lambda x: torch.addmm(x, x, EYE),
    "addbmm": lambda x: torch.addbmm(x, x[None], EYE[None]),
    "mv": lambda x: torch.mv(x, EYE[0]),
    "addmv": lambda x: torch.addmv(x[0], x, EYE[0]),
    "addr": lambda x: torch.addr(x, x[0], x[0]),
    "linear": lambda x: F.linear(x, EYE, EYE[0]),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, EYE),
    "multi_dot": lambda x: torch.linalg.multi_dot([x, EYE, EYE]),
    "conv1d": lambda x: F.conv1d(x[None], EYE[:, :, None]),
    "conv2d": lambda x: F.conv2d(x[None, :, None], EYE[:, :, None, None]),
    "conv_transpose1d": lambda x: F.conv_transpose1d(x[None], EYE[:, :, None]),
    "prelu": lambda x: F.prelu(x, torch.ones(1)),
    "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
}
AS_GIVEN: dict[str, Op] = {
    "add": lambda x: x + x, "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "sqrt": torch.sqrt,
    "mean": torch.mean, "sin": torch.sin, "max": torch.max, "dropout": lambda x: F.dropout(x, 0.5),
}  # fmt: skip


def values(dtype: torch.dtype) -> torch.Tensor:
    """In (0.1, 0.8), where every op above is finite."""
    return torch.linspace(0.1, 0.8, 16).view(4, 4).to(dtype)


def under(name: str, op: Op, x: torch.Tensor, *, policy: str = "cuda") -> torch.Tensor:
    with resolve(name, policy=policy).autocast():  # type: ignore[arg-type]
        return op(x)


@pytest.mark.parametrize("op", FLOAT32)
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_ops_that_need_range_or_digits_answer_in_float32(precision: str, op: str) -> None:
    low = values(resolve(precision).compute_dtype)
    result = under(precision, FLOAT32[op], low)
    assert result.dtype is torch.float32
    torch.testing.assert_close(result, FLOAT32[op](low.float()), rtol=0, atol=0)  # computed so, too, not cast afterwards


@pytest.mark.parametrize("op", LOW)
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_products_answer_in_the_low_format(precision: str, op: str) -> None:
    assert under(precision, LOW[op], values(torch.float32)).dtype is resolve(precision).compute_dtype


@pytest.mark.parametrize("op", AS_GIVEN)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_all_other_ops_answer_in_what_they_are_given(op: str, given: torch.dtype) -> None:
    assert under("bf16-mixed", AS_GIVEN[op], values(given)).dtype is given


@pytest.mark.parametrize("op", [torch.sum, lambda x, **k: x.softmax(-1, **k), lambda x, **k: x.cumsum(0, **k)], ids=["sum", "softmax", "cumsum"])
def test_a_dtype_named_by_the_caller_is_obeyed(op: Callable[..., torch.Tensor]) -> None:
    assert under("bf16-mixed", lambda x: op(x, dtype=torch.bfloat16), values(torch.bfloat16)).dtype is torch.bfloat16


def test_mixed_arguments_meet_in_the_widest_format() -> None:
    low, wide = values(torch.bfloat16), values(torch.float32)
    assert under("bf16-mixed", lambda x: torch.addcmul(x, wide, x), low).dtype is torch.float32
    assert under("bf16-mixed", lambda x: torch.addcmul(x, x, x), low).dtype is torch.bfloat16
    assert under("bf16-mixed", lambda x: torch.dot(x[0], wide[0]), low).dtype is torch.float32


@pytest.mark.parametrize("op", ["exp", "softmax", "sum", "layer_norm"])
def test_float64_and_integers_are_left_alone(op: str) -> None:
    assert under("bf16-mixed", FLOAT32[op], values(torch.float64)).dtype is torch.float64
    assert under("bf16-mixed", torch.sum, LABELS).dtype is torch.int64


def test_native_policy_is_torchs_own() -> None:
    low = values(torch.bfloat16)
    for op in ("exp", "layer_norm", "sum", "pow"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            own = FLOAT32[op](low).dtype
        assert under("bf16-mixed", FLOAT32[op], low, policy="native").dtype is own is torch.bfloat16


def test_gradients_come_back_in_the_dtype_of_the_input_and_are_right() -> None:
    x = values(torch.bfloat16).requires_grad_()
    exact = x.detach().float().requires_grad_()
    under("bf16-mixed", lambda x: F.layer_norm(x, (4,)).softmax(-1).pow(2).sum(), x).backward()
    F.layer_norm(exact, (4,)).softmax(-1).pow(2).sum().backward()
    assert x.grad is not None
    assert exact.grad is not None
    assert x.grad.dtype is torch.bfloat16
    assert torch.equal(x.grad, exact.grad.bfloat16())  # all of it float32, rounded once at the end


def test_inner_blocks_that_switch_autocast_off_are_obeyed() -> None:
    def op(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return x.exp()

    assert under("bf16-mixed", op, values(torch.bfloat16)).dtype is torch.bfloat16


def native_exp() -> torch.dtype:
    """What plain CPU autocast answers exp in: bfloat16, as long as nothing of the policy is left behind."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return values(torch.bfloat16).exp().dtype


def test_torchs_own_policy_is_back_after_the_last_of_nested_blocks() -> None:
    with cuda_policy_on_cpu():
        with cuda_policy_on_cpu():
            assert native_exp() is torch.float32
        assert native_exp() is torch.float32
    assert native_exp() is torch.bfloat16


def test_torchs_own_policy_is_back_after_an_exception() -> None:
    with pytest.raises(KeyError), resolve("bf16-mixed").autocast():
        raise KeyError
    assert native_exp() is torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


def test_threads_share_the_policy_and_the_last_one_out_restores_it() -> None:
    entered, leave, seen = threading.Event(), threading.Event(), []

    def other() -> None:
        with resolve("bf16-mixed").autocast():
            entered.set()
            leave.wait(10)
            seen.append(values(torch.bfloat16).exp().dtype)

    thread = threading.Thread(target=other)
    with resolve("bf16-mixed").autocast():
        thread.start()
        assert entered.wait(10)
    leave.set()
    thread.join(10)
    assert seen == [torch.float32]
    assert native_exp() is torch.bfloat16


GPU_ONLY = ("cudnn", "_cudnn_rnn", "_thnn_fused", "_scaled_dot_product_flash_attention")
NAMED = ("Dimname", "dimname", "names_")
"""In the overloads of named tensors. Their kernels are there in builds for CUDA alone, and torch has given named tensors up."""


def test_every_op_on_the_gpus_lists_is_on_the_cpus_too() -> None:
    with cuda_policy_on_cpu():
        names = torch._C._dispatch_get_all_op_names()
        left_out = [name for name in names if has_kernel(name, "AutocastCUDA") and not has_kernel(name, "AutocastCPU")]
    ours = [name.removeprefix("aten::") for name in left_out if name.startswith("aten::") and not any(word in name for word in NAMED)]
    assert [name for name in ours if not name.startswith(GPU_ONLY)] == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("policy", ["cuda", "native"])
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_a_traced_convolution_runs_op_by_op(precision: str, policy: str) -> None:
    """As a trace runs within precheck: without TorchScript's executor, which would cast its weight."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Conv1d(4, 4, 1))
    x = torch.rand(2, 4, 4)
    traced = torch.jit.trace(net, (x,))
    low = resolve(precision).compute_dtype
    with interpreted():
        with pytest.raises(RuntimeError, match="TorchScript interpreter"), torch.autocast("cpu", dtype=low):  # torch itself cannot
            traced(x)
        assert under(precision, traced, x, policy=policy).dtype is low
    with interpreted(), pytest.raises(RuntimeError, match="TorchScript interpreter"), torch.autocast("cpu", dtype=low):  # the kernel is gone again
        traced(x)
