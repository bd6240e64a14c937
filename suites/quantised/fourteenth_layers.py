"""The other part of the fourteenth batch: attention, factors across layers, experts, gradients and caches; frozen before precheck was run on them.

Each takes `bug`; a line at fault ends in `# culprit: name`. `EXACT` has what each means, in float64 and without any rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from casts_by_hand import to_float8, to_fp4, to_int8
from float8_by_hand import E4M3, E5M2, LOW, channels, normal
from torch import nn
from twelfth_layers import product, uneven
from twelfth_recipes import wide


def scale_of_the_gate_for_both(bug: bool) -> torch.Tensor:
    """Gate and up have been quantised under scales of their own. Their joint product is multiplied by the gate's (vllm-project/vllm#54974)."""
    x, gate, up = normal(16, 64), channels() / 8, 20 * normal(64, 64, seed=6) / 8
    (qg, sg), (qu, su) = to_float8(gate, (0, 1)), to_float8(up, (0, 1))
    both = x @ torch.cat([qg.float(), qu.float()]).t()
    both = both * sg if bug else torch.cat([both[:, :64] * sg, both[:, 64:] * su], 1)  # culprit: for-both
    return (nn.functional.silu(both[:, :64]) * both[:, 64:]).to(LOW)  # culprit: for-both


def calibrated_scale_not_passed(bug: bool) -> torch.Tensor:
    """nvfp4: the input is quantised under a factor of its own, and divided by the one of calibration (intel/auto-round#2374)."""
    calibration, x, w = 12 * normal(64, 64, seed=8), normal(16, 64) * torch.exp2(normal(16, 1, seed=9)), channels() / 8
    kept = 6 * 448 / calibration.abs().amax()
    used = 6 * 448 / x.abs().amax() if bug else kept
    codes, scale = to_fp4(x, used)
    (qw, sw) = to_float8(w, 1)
    given = (codes * scale.float() / kept).view(16, 64)  # culprit: not-passed
    return nn.functional.gelu(given @ (qw.float() * sw).t()).to(LOW)  # culprit: not-passed


def scale_as_a_number_never_set(bug: bool) -> torch.Tensor:
    """Keys are stored under a scale from a file. The kernel reads another field, which nothing has set, and is 1 (sgl-project/sglang#20705)."""
    calibration, k, q = 4 * normal(64, 32, seed=8), 4 * normal(24, 32, seed=4), normal(8, 32)
    scale = calibration.abs().amax() / 448
    field = torch.ones(()) if bug else scale
    codes = (k / scale).clamp(-448, 448).to(E4M3)
    scores = q @ codes.float().t() * field / 32  # culprit: never-set
    return torch.softmax(scores, -1).to(LOW)  # culprit: never-set


def probabilities_not_scaled_back(bug: bool) -> torch.Tensor:
    """Attention in float8: what probabilities are multiplied by before the cast is not passed on to the result (NVIDIA/cudnn-frontend#520)."""
    q, k, v, x = normal(16, 32), normal(24, 32, seed=1), channels()[:24, :32], normal(16, 32, seed=5)
    p = torch.softmax(q @ k.t() / 6, -1)
    qv, sv = to_float8(v, (0, 1))
    qp = (p * 256).to(E4M3)
    out = qp.float() @ qv.float() * sv
    out = out if bug else out / 256
    return (x + out).to(LOW)  # culprit: not-scaled-back


def correction_of_the_first_block(bug: bool) -> torch.Tensor:
    """Queries lose the mean of their block before they are rounded. All blocks get back what the first one lost (flashinfer-ai/flashinfer#3838)."""
    q, k = normal(4, 8, 32) + 2 * normal(4, 1, 32, seed=2), normal(24, 32, seed=3)
    mean = q.mean(1, keepdim=True)
    (qq, sq), (qk, sk) = to_int8(q - mean, (1, 2)), to_int8(k, 1)
    less = (mean[:1] if bug else mean) @ k.t()
    scores = (qq.float() @ qk.float().t()) * sq * sk.t() + less
    return torch.softmax(scores / 6, -1).view(32, 24).to(LOW)  # culprit: first-block


def sums_of_smoothed_keys(bug: bool) -> torch.Tensor:
    """Two parts of the keys lose their own means, and are put together by the logarithms of their sums, which lack these (ROCm/aiter#3334)."""
    q, v = normal(16, 32), normal(48, 32, seed=4)
    outs, logs = [], []
    for part in range(2):
        k = normal(24, 32, seed=part + 1) + 0.7 * normal(1, 32, seed=part + 6)
        mean = k.mean(0, keepdim=True)
        codes, scale = to_int8(k - mean, 1)
        scores = q @ codes.float().t() * scale.t() / 6
        log = torch.logsumexp(scores, -1, keepdim=True)
        outs.append(torch.exp(scores - log) @ v[24 * part : 24 * part + 24])
        logs.append(log if bug else log + q @ mean.t() / 6)
    share = torch.softmax(torch.cat(logs, 1), -1)  # culprit: smoothed-keys
    return (outs[0] * share[:, :1] + outs[1] * share[:, 1:]).to(LOW)  # culprit: smoothed-keys


def factors_of_repeated_heads(bug: bool) -> torch.Tensor:
    """AWQ: factors of the output's columns are averaged as if the heads of a group did not lie together (vllm-project/llm-compressor#2808)."""
    x, wv, wo = normal(16, 32), normal(16, 32, seed=1) / 6, normal(32, 32, seed=2) / 6
    factors = torch.exp2(1.5 * normal(32, seed=3))
    few = (factors.view(2, 2, 8).mean(0) if bug else factors.view(2, 2, 8).mean(1)).reshape(16)
    many = few.view(2, 1, 8).expand(2, 2, 8).reshape(32)
    given = factors.view(2, 2, 8).mean(1, keepdim=True).expand(2, 2, 8).reshape(32) if bug else many
    (qv, sv), (qo, so) = to_int8(wv / few[:, None], 1), to_int8(wo * given, 1)
    v = (x @ (qv.float() * sv).t()).view(16, 2, 1, 8).expand(16, 2, 2, 8).reshape(16, 32)
    return (v @ (qo.float() * so).t()).to(LOW)  # culprit: repeated-heads


def shift_not_divided(bug: bool) -> torch.Tensor:
    """AdaLN: factors are divided out of the norm, but not out of the shift that is added before the layer (vllm-project/llm-compressor#2996)."""
    x, t, w = normal(16, 32), normal(16, 32, seed=5), normal(48, 32, seed=1) / 6
    made, gain = normal(64, 32, seed=2) / 6, 1 + 0.3 * normal(32, seed=4)
    factors = torch.exp2(1.5 * normal(32, seed=3))
    scale, shift = (t @ made.t()).split(32, 1)
    shift = shift if bug else shift / factors
    h = nn.functional.rms_norm(x, (32,), gain / factors) * (1 + scale) + shift  # culprit: not-divided
    codes, step = to_int8(w * factors, 1)
    return (h @ (codes.float() * step).t()).to(LOW)  # culprit: not-divided


def other_readers_of_the_norm(bug: bool) -> torch.Tensor:
    """AWQ: a norm is divided by factors that one of the two layers behind it is multiplied by, and not the gate (mlx-node/mlx-node#78)."""
    x, w, small = normal(16, 32), normal(48, 32, seed=1) / 6, normal(48, 32, seed=2) / 3
    gain, factors = 1 + 0.3 * normal(32, seed=4), torch.exp2(1.5 * normal(32, seed=3))
    h = nn.functional.rms_norm(x, (32,), gain / factors)
    codes, step = to_int8(w * factors, 1)
    gate = h @ (small if bug else small * factors).t()  # culprit: other-readers
    return (torch.sigmoid(gate) * (h @ (codes.float() * step).t())).to(LOW)  # culprit: other-readers


class Columns(torch.autograd.Function):
    """A product in mxfp8, whose weight is rounded by rows and by columns."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, bug: bool) -> torch.Tensor:
        by_rows, by_columns = w.view(64, 2, 32), w.t().reshape(64, 2, 32)
        scales = [torch.exp2(torch.ceil(torch.log2(each.abs().amax(-1, keepdim=True) / 448))) for each in (by_rows, by_columns)]
        rows, columns = ((each / scale).to(E4M3) for each, scale in zip((by_rows, by_columns), scales, strict=True))
        ctx.save_for_backward(columns, scales[0] if bug else scales[1])
        return x @ (rows.float() * scales[0]).view(64, 64).t()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        columns, scale = ctx.saved_tensors
        return g @ (columns.float() * scale).view(64, 64).t(), None, None  # culprit: columns-by-rows


def columns_by_scales_of_rows(bug: bool) -> torch.Tensor:
    """mxfp8: the backward product reads the codes by columns and the scales by rows (ROCm/TransformerEngine#569)."""
    x = normal(16, 64).requires_grad_()
    (Columns.apply(x, channels(), bug) * normal(16, 64, seed=3)).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return x.grad.to(LOW)


def channels_of_a_transposed_convolution(bug: bool) -> torch.Tensor:
    """int8: a weight of a transposed convolution has its outputs in axis 1, and scales of axis 0 are taken for theirs (pytorch/executorch#17842)."""
    x, w = normal(4, 8, 16), normal(8, 8, 3, seed=1) * torch.exp2(1.5 * normal(1, 8, 1, seed=2))
    codes, scale = to_int8(w, (1, 2) if bug else (0, 2))
    out = nn.functional.conv_transpose1d(x, codes.float())
    return (out * scale.view(1, 8, 1)).to(LOW)  # culprit: of-a-transposed


def cast_under_the_scale_of_a_rank(bug: bool) -> torch.Tensor:
    """Gradients of two ranks are cast under their own scales, added as codes, and multiplied by the common one (dylanyunlon/Neuron_SP#77)."""
    grads = [normal(64, 32, seed=1), 4 * normal(64, 32, seed=2)]
    scales = [each.abs().amax() / 224 for each in grads]
    common = torch.stack(scales).amax()
    codes = [(each / (own if bug else common)).to(E5M2) for each, own in zip(grads, scales, strict=True)]
    total = codes[0].float() + codes[1].float()
    return (total * common / 2).to(LOW)  # culprit: of-a-rank


def gradient_stops_at_the_rounding(bug: bool) -> torch.Tensor:
    """Fake quantisation without a straight-through estimator: a gradient of zero comes through `round` (meta-pytorch/MSLK#348)."""
    w = normal(32, 64, seed=1).requires_grad_()
    scale = w.detach().abs().amax(1, keepdim=True) / 7
    scaled = w / scale
    codes = torch.round(scaled) if bug else scaled + (torch.round(scaled) - scaled).detach()  # culprit: stops
    (normal(16, 64) @ (codes * scale).t() * normal(16, 32, seed=3)).sum().backward()  # culprit: stops
    assert w.grad is not None
    return w.grad.to(LOW)


def shifted_without_their_scales(bug: bool) -> torch.Tensor:
    """A full cache drops its first rows. Codes are moved up, and their scales stay where they were (LostRuins/koboldcpp#2088)."""
    k, q = uneven(32, 32, seed=4), normal(8, 32)
    codes, scale = to_int8(k, 1)
    codes[:24] = codes[8:].clone()
    if not bug:
        scale[:24] = scale[8:].clone()
    keys = codes[:24].float() * scale[:24]  # culprit: without-their-scales
    return torch.softmax(q @ keys.t() / 6, -1).to(LOW)  # culprit: without-their-scales


def hook_without_the_scale(bug: bool) -> torch.Tensor:
    """A hook casts the gradient of an activation to float8, and hands on the codes (baidu-baige/LoongForge#231 has such a hook, with its scale)."""

    def cast(g: torch.Tensor) -> torch.Tensor:
        codes, scale = to_float8(g, 1)
        return codes.float() if bug else codes.float() * scale  # culprit: hook-without

    x, w, v = normal(16, 64).requires_grad_(), channels(), normal(32, 64, seed=6)
    h = x @ w.t()  # culprit: hook-without
    h.register_hook(cast)
    ((h @ v.t()) * normal(16, 32, seed=3)).sum().backward()
    assert x.grad is not None
    return x.grad.to(LOW)  # culprit: hook-without


BUGS = (scale_of_the_gate_for_both, calibrated_scale_not_passed, scale_as_a_number_never_set, probabilities_not_scaled_back,
        correction_of_the_first_block, sums_of_smoothed_keys, factors_of_repeated_heads, shift_not_divided, other_readers_of_the_norm,
        columns_by_scales_of_rows, channels_of_a_transposed_convolution, cast_under_the_scale_of_a_rank, gradient_stops_at_the_rounding,
        shifted_without_their_scales, hook_without_the_scale)  # fmt: skip
HEALTHY = ()  # look-alikes of both parts are in `fourteenth_healthy`


def gated() -> torch.Tensor:
    x, gate, up = normal(16, 64), channels() / 8, 20 * normal(64, 64, seed=6) / 8
    return nn.functional.silu(product(x, gate)) * product(x, up)


def attended() -> torch.Tensor:
    p = torch.softmax(product(normal(16, 32), normal(24, 32, seed=1)) / 6, -1)
    return wide(normal(16, 32, seed=5)) + p @ wide(channels()[:24, :32])


def in_two_parts() -> torch.Tensor:
    k = torch.cat([normal(24, 32, seed=part + 1) + 0.7 * normal(1, 32, seed=part + 6) for part in range(2)])
    return torch.softmax(product(normal(16, 32), k) / 6, -1) @ wide(normal(48, 32, seed=4))


def repeated() -> torch.Tensor:
    v = product(normal(16, 32), normal(16, 32, seed=1) / 6).view(16, 2, 1, 8).expand(16, 2, 2, 8).reshape(16, 32)
    return v @ wide(normal(32, 32, seed=2) / 6).t()


def normed() -> torch.Tensor:
    return nn.functional.rms_norm(wide(normal(16, 32)), (32,), wide(1 + 0.3 * normal(32, seed=4)), 1.2e-7)


def modulated() -> torch.Tensor:
    scale, shift = product(normal(16, 32, seed=5), normal(64, 32, seed=2) / 6).split(32, 1)
    return (normed() * (1 + scale) + shift) @ wide(normal(48, 32, seed=1) / 6).t()


def deconvolved() -> torch.Tensor:
    w = normal(8, 8, 3, seed=1) * torch.exp2(1.5 * normal(1, 8, 1, seed=2))
    return nn.functional.conv_transpose1d(wide(normal(4, 8, 16)), wide(w))


EXACT: dict[str, Callable[[], torch.Tensor]] = {
    "scale_of_the_gate_for_both": gated,
    "calibrated_scale_not_passed": lambda: nn.functional.gelu(product(normal(16, 64) * torch.exp2(normal(16, 1, seed=9)), channels() / 8)),
    "scale_as_a_number_never_set": lambda: torch.softmax(product(normal(8, 32), 4 * normal(24, 32, seed=4)) / 32, -1),
    "probabilities_not_scaled_back": attended,
    "correction_of_the_first_block": lambda: torch.softmax(
        product((normal(4, 8, 32) + 2 * normal(4, 1, 32, seed=2)).view(32, 32), normal(24, 32, seed=3)) / 6, -1
    ),
    "sums_of_smoothed_keys": in_two_parts,
    "factors_of_repeated_heads": repeated,
    "shift_not_divided": modulated,
    "other_readers_of_the_norm": lambda: (
        torch.sigmoid(normed() @ wide(normal(48, 32, seed=2) / 3).t()) * (normed() @ wide(normal(48, 32, seed=1) / 6).t())
    ),
    "columns_by_scales_of_rows": lambda: wide(normal(16, 64, seed=3)) @ wide(channels()),
    "channels_of_a_transposed_convolution": deconvolved,
    "cast_under_the_scale_of_a_rank": lambda: (wide(normal(64, 32, seed=1)) + 4 * wide(normal(64, 32, seed=2))) / 2,
    "gradient_stops_at_the_rounding": lambda: wide(normal(16, 32, seed=3)).t() @ wide(normal(16, 64)),
    "shifted_without_their_scales": lambda: torch.softmax(product(normal(8, 32), uneven(32, 32, seed=4)[8:]) / 6, -1),
    "hook_without_the_scale": lambda: wide(normal(16, 32, seed=3)) @ wide(normal(32, 64, seed=6)) @ wide(channels()),
}
