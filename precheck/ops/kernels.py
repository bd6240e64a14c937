"""Rows of kernels that fuse several steps: losses, softmax, norms, attention, decompositions and derivatives.

A recurrent layer in float32 is one kernel on a CPU. Its factors are its input and weights. Its hidden states are also operands of products, but they
are not arguments.
"""

from __future__ import annotations

from precheck.ops.spec import Kind, OpSpec, each

_LOSSES = (
    *each("mse_loss l1_loss smooth_l1_loss huber_loss", OpSpec("", Kind.LOSS, subtracts=True)),
    *each("nll_loss_forward nll_loss2d_forward", OpSpec("", Kind.LOSS, linear="ab")),
    OpSpec("binary_cross_entropy", Kind.LOSS),
    OpSpec("_ctc_loss", Kind.LOG_SUM, unwritten=(1,)),
)

_ATTENTION = [f"_scaled_dot_product_{kernel}" for kernel in ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")]
_LAYERS = (
    *each("_softmax _safe_softmax", OpSpec("", Kind.SOFTMAX)),
    OpSpec("_log_softmax", Kind.SOFTMAX, steady=True),
    *each("native_layer_norm native_group_norm", OpSpec("", Kind.NORMALIZATION, subtracts=True)),
    *each("native_batch_norm cudnn_batch_norm miopen_batch_norm",
          OpSpec("", Kind.NORMALIZATION, hidden_writes=(3, 4), accumulates="statistics", subtracts=True)),
    *each("_native_batch_norm_legit _batch_norm_with_update", OpSpec("", Kind.NORMALIZATION, accumulates="statistics", subtracts=True)),
    *each(" ".join(_ATTENTION), OpSpec("", Kind.ATTENTION, linear="c", factors=(0, 1, 2), engine="attention")),
    *each(" ".join(f"{name}_backward" for name in _ATTENTION), OpSpec("", Kind.ATTENTION, linear="a", factors=(0, 1, 2, 3), engine="attention")),
    OpSpec("mkldnn_rnn_layer", Kind.RECURRENT, factors=(0, 1, 2), engine="recurrent", workspace="payload"),
    OpSpec("mkldnn_rnn_layer_backward", Kind.RECURRENT, factors=(0, 1, 2, 10), engine="recurrent", workspace="payload"),
    *each("_cudnn_rnn _cudnn_rnn_backward miopen_rnn miopen_rnn_backward", OpSpec("", Kind.RECURRENT, workspace="packed")),
)  # fmt: skip

_DECOMPOSITIONS = (
    OpSpec("_linalg_eigh", Kind.DECOMPOSITION, vectors=((1, -2),)),
    OpSpec("_linalg_svd", Kind.DECOMPOSITION, vectors=((0, -2), (2, -1))),
    OpSpec("linalg_eig", Kind.DECOMPOSITION, unordered=True),
    OpSpec("linalg_qr", Kind.DECOMPOSITION),
)
"""Vectors of `linalg_eig` are complex with an arbitrary phase. Those of `linalg_qr` have a fixed sign by LAPACK's convention."""

_GRADIENTS = (
    OpSpec("threshold_backward", Kind.GRADIENT, "a", linear="a", side=1, masks=True),
    *each("hardtanh_backward hardshrink_backward softshrink_backward", OpSpec("", Kind.GRADIENT, "a", linear="a", side=1, masks=True)),
    *each("leaky_relu_backward hardsigmoid_backward", OpSpec("", Kind.GRADIENT, "a", linear="a", side=1)),
    OpSpec("hardswish_backward", Kind.GRADIENT, "a", linear="a", side=1, thresholds=(-3.0, 3.0)),
    OpSpec("elu_backward", Kind.GRADIENT, "a", linear="a", side=5, thresholds=(0.0,)),
    *each("unfold_backward col2im", OpSpec("", Kind.GRADIENT, "a", linear="a")),
)

_SCALER = each("_amp_update_scale _amp_foreach_non_finite_check_and_unscale", OpSpec("", Kind.SCALER))

ROWS = (*_LOSSES, *_LAYERS, *_DECOMPOSITIONS, *_GRADIENTS, *_SCALER)
