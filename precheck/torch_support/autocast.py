"""Makes autocast on a CPU follow CUDA's op policy, inside the block `cuda_policy_on_cpu`.

Autocast has one op list for each device. CPU's list leaves softmax, norms, exp, pow and sums in the low format; CUDA's runs them in float32. A CPU
in CI stands in for the GPU that will train. So `*-mixed` follows CUDA's list here, unless `precision_policy = native` asks for the CPU's own. The
lists are those of ATen/autocast_mode.h (torch 2.13). They are put where torch keeps its own, as kernels under the AutocastCPU dispatch key, so that
ops called from C++ obey them too.

Two things are not carried over. CUDA refuses `binary_cross_entropy` under autocast. It also runs a few ops in the low format that CPU autocast
keeps in float32 (avg_pool3d, stft, ctc_loss, most of linalg). Those stay as the CPU has them.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from precheck.torch_support import cuda_blocks
from precheck.torch_support.shared_changes import overrides

LOW = """_convolution convolution conv_tbc prelu addmv addr mv linalg_vecdot einsum chain_matmul linalg_multi_dot
    lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell""".split()
FLOAT32 = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm
    frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss
    nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
    multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits
    dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
    _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
    _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa
    norm.Scalar norm.ScalarOpt_dim""".split()
FLOAT32_UNLESS_DTYPE = """prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
    linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList""".split()
_Choice = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Gives the dtype to which an op's arguments are cast, from the arguments. None: they stay."""
WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add".split()


@contextlib.contextmanager
def cuda_policy_on_cpu() -> Iterator[None]:
    """CPU autocast follows CUDA's op lists inside the block, and is off where the program turns CUDA's autocast off. Blocks may be nested. After the
    last one torch's own kernels are back."""
    with _policy.held(), cuda_blocks.followed():
        yield


def traced_convolutions() -> contextlib.AbstractContextManager[None]:
    """CPU autocast casts for a convolution of torch.jit.trace inside the block, as TorchScript's executor does. A trace calls `_convolution`, which
    is not on the CPU's own list: without the executor it gets a low input and a float32 weight, and raises."""
    return _traced.held()


def _install(*chosen: str) -> Any:
    """Registers the kernels, or the chosen ones only."""
    import torch

    library = torch.library.Library("aten", "IMPL", "AutocastCPU")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a kernel is overridden, which is the purpose
        for name, kernel in _kernels():
            if name in (chosen or (name,)):
                library.impl(name, kernel, allow_override=True)
    return library


@functools.cache
def _kernels() -> tuple[tuple[str, Callable[..., Any]], ...]:
    import torch

    groups: tuple[tuple[list[str], _Choice], ...] = (
        (LOW, lambda args, kwargs: torch.get_autocast_dtype("cpu")),
        (FLOAT32, lambda args, kwargs: torch.float32),
        (FLOAT32_UNLESS_DTYPE, lambda args, kwargs: None if kwargs.get("dtype") is not None else torch.float32),
        (WIDEST, _widest),
    )
    found = []
    for names, choose in groups:
        for name in names:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if op is not None:  # an op that this torch does not have needs no policy
                found.append((name, _in_dtype(op, choose)))
    return tuple(found)


def _below_autocast() -> Any:
    from precheck.torch_internals import DispatchKey, DispatchKeySet, without_keys

    return without_keys(DispatchKeySet(DispatchKey.AutocastCPU))


def _cast(value: Any, dtype: Any) -> Any:
    """Casts floating tensors on the CPU except float64, as autocast_mode.h does. Goes into lists and tuples."""
    import torch

    if isinstance(value, torch.Tensor):
        eligible = value.is_floating_point() and value.device.type == "cpu" and value.dtype != torch.float64
        return value.to(dtype) if eligible else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(item, dtype) for item in value)
    return value


def _in_dtype(op: Any, choose: _Choice) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _below_autocast():
            dtype = choose(args, kwargs)
            if dtype is None:
                return op(*args, **kwargs)
            return op(*_cast(args, dtype), **{name: _cast(value, dtype) for name, value in kwargs.items()})

    return kernel


def _widest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    import torch

    tensors = [item for value in (*args, *kwargs.values()) for item in (value if isinstance(value, (list, tuple)) else (value,))]
    dtypes = {item.dtype for item in tensors if isinstance(item, torch.Tensor) and item.is_floating_point()}
    return torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("cpu")


_policy = overrides(_install)
_traced = overrides(functools.partial(_install, "_convolution"))
