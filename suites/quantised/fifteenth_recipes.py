"""One part of the fifteenth batch: inference with SmoothQuant, AWQ, GPTQ, tables, caches, experts and integers. Frozen before precheck was run on it.

Each takes `bug`; a line at fault ends in `# culprit: name`. `EXACT` has what each means, in float64 and without any rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from casts_by_hand import asymmetric, to_float8, to_int8
from float8_by_hand import E4M3, LOW, channels, normal
from torch import nn
from twelfth_layers import product, uneven
from twelfth_recipes import wide


def outliers() -> torch.Tensor:
    """An input with channels of different size."""
    return normal(16, 64) * torch.exp2(2 * normal(64, seed=9))


def smoothing(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.abs().amax(0) / w.abs().amax(0)).sqrt()


def both_divided(bug: bool) -> torch.Tensor:
    """SmoothQuant: the weight is divided by the factors, as the input is."""
    x, w = outliers(), normal(48, 64, seed=1)
    factors = smoothing(x, w)
    codes, step = to_int8(w / factors if bug else w * factors, 1)
    (qx, sx) = to_int8(x / factors, 1)
    return ((qx.float() @ codes.float().t()) * sx * step.t()).to(LOW)  # culprit: both-divided


def token_scale_before_smoothing(bug: bool) -> torch.Tensor:
    """SmoothQuant: the scale of a token is that of the input before it was divided by the factors, most of which are below one."""
    x, w = normal(16, 64), 16 * normal(48, 64, seed=1) * torch.exp2(normal(64, seed=9))
    factors = smoothing(x, w)
    smooth = x / factors
    scale = (x if bug else smooth).abs().amax(1, keepdim=True) / 127
    qx = torch.round(smooth / scale).clamp(-128, 127)  # culprit: before-smoothing
    codes, step = to_int8(w * factors, 1)
    return ((qx @ codes.float().t()) * scale * step.t()).to(LOW)


def range_of_deviations_not_stored(bug: bool) -> torch.Tensor:
    """The range of each group is three deviations of its numbers. What is stored as its scale is made of the greatest magnitude."""
    x, groups = normal(16, 128), uneven(48, 4, 32)
    whole, scale = groups.abs().amax(-1, keepdim=True) / 127, 3 * groups.std(-1, keepdim=True) / 127
    codes = torch.round(groups / scale).clamp(-127, 127).to(torch.int8)
    dense = codes.float() * (whole if bug else scale)  # culprit: not-stored
    return (x @ dense.view(48, 128).t()).sigmoid().to(LOW)  # culprit: not-stored


def factors_by_rows(bug: bool) -> torch.Tensor:
    """AWQ as a simulation: a square weight is multiplied by factors of its columns, rounded, and divided by them along its rows."""
    x, w = normal(16, 64), normal(64, 64, seed=1)
    factors = torch.exp2(1.5 * normal(64, seed=3))
    codes, step = to_int8(w * factors, 1)
    dense = (codes.float() * step) / (factors[:, None] if bug else factors)  # culprit: by-rows
    return (x @ dense.t()).to(LOW)  # culprit: by-rows


def groups_without_the_order(bug: bool) -> torch.Tensor:
    """GPTQ with an order of columns: the kernel counts groups in the original order, where codes were put back."""
    x, w = normal(16, 128), uneven(48, 4, 32).view(48, 128)
    order = torch.randperm(128, generator=torch.Generator().manual_seed(3))
    codes, scale = to_int8(w[:, order].view(48, 4, 32), -1)
    back = torch.argsort(order)
    group = torch.arange(128) // 32
    held = codes.view(48, 128)[:, back]
    places = group if bug else group[back]
    dense = held.float() * scale[:, :, 0][:, places]  # culprit: without-the-order
    return (x @ dense.t()).to(LOW)  # culprit: without-the-order


def tables_of_another_row(bug: bool) -> torch.Tensor:
    """SqueezeLLM: each row has a table of 16 centres. Rows were sorted for sparsity, and tables were not."""
    x, w = normal(16, 64), normal(32, 64, seed=1) * torch.exp2(normal(32, 1, seed=4))
    tables = torch.quantile(w, torch.linspace(0.03, 0.97, 16), 1).t().contiguous()
    codes = (w[:, :, None] - tables[:, None]).abs().argmin(-1)
    order = torch.argsort(w.abs().amax(1))
    held = codes[order]
    dense = torch.gather(tables if bug else tables[order], 1, held)  # culprit: of-another-row
    return (x @ dense[torch.argsort(order)].t()).to(LOW)  # culprit: of-another-row


def head_scales_tiled(bug: bool) -> torch.Tensor:
    """A cache in int8 with a scale for each of two heads, which two queries share. Scales are tiled, where they must be repeated."""
    q, k = normal(4, 8, 16), normal(2, 24, 16, seed=4) * torch.tensor([1.0, 6.0]).view(2, 1, 1)
    codes, scale = to_int8(k, (1, 2))
    many = scale.repeat(2, 1, 1) if bug else scale.repeat_interleave(2, 0)
    scores = q @ codes.float().repeat_interleave(2, 0).transpose(1, 2) * many / 4  # culprit: tiled
    return torch.softmax(scores, -1).to(LOW)  # culprit: tiled


def scale_by_position_not_slot(bug: bool) -> torch.Tensor:
    """A paged cache: codes are written to and read from slots, and scales are written to slots and read by positions."""
    q, k = normal(8, 32), uneven(24, 32, seed=4)
    slots = torch.randperm(32, generator=torch.Generator().manual_seed(5))[:24]
    codes, scale = to_int8(k, 1)
    pages, scales = torch.zeros(32, 32, dtype=torch.int8), torch.ones(32, 1)
    pages[slots], scales[slots] = codes, scale
    keys = pages[slots].float() * (scales[:24] if bug else scales[slots])  # culprit: not-slot
    return torch.softmax(q @ keys.t() / 6, -1).to(LOW)  # culprit: not-slot


def turned(k: torch.Tensor) -> torch.Tensor:
    """Rotary positions, halves apart."""
    angles = torch.arange(len(k))[:, None] * torch.exp2(-torch.arange(16.0))
    first, second = k[:, :16], k[:, 16:]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], 1)


def rotated_codes_under_channel_scales(bug: bool) -> torch.Tensor:
    """Keys are stored before rotary positions, with a scale for each channel. The kernel rotates codes, and multiplies by scales after that."""
    q, k = normal(8, 32), normal(24, 32, seed=4) * torch.exp2(1.5 * normal(32, seed=6))
    codes, scale = to_int8(k, 0)
    keys = turned(codes.float()) * scale if bug else turned(codes.float() * scale)  # culprit: rotated-codes
    return torch.softmax(q @ keys.t() / 6, -1).to(LOW)  # culprit: rotated-codes


def bound_on_the_stored_scale_alone(bug: bool) -> torch.Tensor:
    """Tokens in float8 with an upper bound for their scales: what is stored is limited, what was divided by is not."""
    x, w = uneven(16, 64), channels() / 8
    scale = x.abs().amax(1, keepdim=True) / 448
    stored = scale.clamp(max=0.004) if bug else scale
    codes = (x / scale).to(E4M3)
    (qw, sw) = to_float8(w, 1)
    return nn.functional.silu((codes.float() @ qw.float().t()) * stored * sw.t()).to(LOW)  # culprit: bound


def experts() -> torch.Tensor:
    return normal(4, 32, 64, seed=2) / 8 * torch.tensor([1.0, 4.0, 0.5, 9.0]).view(4, 1, 1)


def global_scales_by_local_ids(bug: bool) -> torch.Tensor:
    """Experts are spread over two ranks. The second has the codes of its own, and looks their scales up by local numbers in all of them."""
    x, (codes, scale) = normal(2, 8, 64), to_int8(experts(), (1, 2))
    own, ids = codes[2:], torch.arange(2)
    used = scale[ids] if bug else scale[ids + 2]
    out = torch.bmm(x, own.float().transpose(1, 2)) * used  # culprit: local-ids
    return nn.functional.silu(out).view(16, 32).to(LOW)  # culprit: local-ids


def block_takes_the_first_expert(bug: bool) -> torch.Tensor:
    """Tokens are sorted by expert and cut into blocks of 8. A block that holds two experts takes the scale of the first one's weight."""
    x, (codes, scale) = normal(16, 64), to_int8(experts(), (1, 2))
    who = torch.tensor([0] * 5 + [1] * 6 + [2] * 2 + [3] * 3)
    out = torch.einsum("tk,tnk->tn", x, codes.float()[who])
    used = who[torch.arange(16) // 8 * 8] if bug else who
    return nn.functional.silu(out * scale[used][:, :, 0]).to(LOW)  # culprit: first-expert


def scales_by_position(bug: bool) -> torch.Tensor:
    """An embedding in int8 with a scale for each row. Rows are looked up by token, scales by position."""
    codes, scale = to_int8(uneven(32, 64), 1)
    ids = torch.tensor([3, 17, 9, 30, 4, 4, 21, 8])
    x = nn.functional.embedding(ids, codes.float()) * (scale[:8] if bug else scale[ids])  # culprit: by-position
    return nn.functional.rms_norm(x + normal(8, 64, seed=5), (64,)).to(LOW)  # culprit: by-position


def constant_in_the_old_unit(bug: bool) -> torch.Tensor:
    """I-BERT's second-order polynomial in integers: the constant is divided by the scale of the result of the layer before."""
    x = normal(16, 64)
    codes, scale = to_int8(x, (0, 1))
    smaller = scale / 2**0.5
    shift = torch.floor(-1.769 / (scale / 6 if bug else smaller))
    held = torch.minimum(codes.float().abs(), -shift)
    square = (held + shift).square() + torch.floor(1 / (-0.2888 * smaller**2))
    return (codes.float().sign() * square * (-0.2888 * smaller**2)).to(LOW)  # culprit: old-unit


def multiplier_times_the_output_scale(bug: bool) -> torch.Tensor:
    """Sums in int32 become int8 by the multiplier s_x s_w / s_y. The last one is multiplied by, since its inverse was stored already."""
    x, w, v = normal(16, 64), normal(32, 64, seed=1) / 8, normal(24, 32, seed=2) / 6
    (qx, sx), (qw, sw), (qv, sv) = to_int8(x, (0, 1)), to_int8(w, (0, 1)), to_int8(v, (0, 1))
    top = (x @ w.t()).abs().amax() / 127
    multiplier = sx * sw * top * 400 if bug else sx * sw / top
    hidden = torch.round((qx.float() @ qw.float().t()) * multiplier).clamp(-128, 127)  # culprit: output-scale
    return nn.functional.gelu(hidden @ qv.float().t() * (top * sv)).to(LOW)  # culprit: output-scale


def sums_over_outputs(bug: bool) -> torch.Tensor:
    """The zero point of an input is taken out by the sums of the codes of a square weight. They are taken over outputs, not inputs."""
    x, w = normal(16, 64) + 1, channels() + 0.5
    codes, sx, zero = asymmetric(x, 64)
    codes, sx, zero = codes[:, 0], sx[:, 0], zero[:, 0]
    qw, sw = to_int8(w, 1)
    sums = qw.float().sum(0 if bug else 1)
    y = codes.float() @ qw.float().t() - zero * sums
    return (y * sx * sw.t()).to(LOW)  # culprit: over-outputs


BUGS = (both_divided, token_scale_before_smoothing, range_of_deviations_not_stored, factors_by_rows, groups_without_the_order, tables_of_another_row,
        head_scales_tiled, scale_by_position_not_slot, rotated_codes_under_channel_scales, bound_on_the_stored_scale_alone,
        global_scales_by_local_ids, block_takes_the_first_expert, scales_by_position, constant_in_the_old_unit,
        multiplier_times_the_output_scale, sums_over_outputs)  # fmt: skip


def grouped() -> torch.Tensor:
    who = torch.tensor([0] * 5 + [1] * 6 + [2] * 2 + [3] * 3)
    return nn.functional.silu(torch.einsum("tk,tnk->tn", wide(normal(16, 64)), wide(experts())[who]))


def polynomial() -> torch.Tensor:
    x = wide(normal(16, 64)) / 2**0.5
    return x.sign() * (-0.2888 * (x.abs().clamp(max=1.769) - 1.769).square() + 1)


EXACT: dict[str, Callable[[], torch.Tensor]] = {
    "both_divided": lambda: product(outliers(), normal(48, 64, seed=1)),
    "token_scale_before_smoothing": lambda: product(normal(16, 64), 16 * normal(48, 64, seed=1) * torch.exp2(normal(64, seed=9))),
    "range_of_deviations_not_stored": lambda: product(normal(16, 128), uneven(48, 4, 32)).sigmoid(),
    "factors_by_rows": lambda: product(normal(16, 64), normal(64, 64, seed=1)),
    "groups_without_the_order": lambda: product(normal(16, 128), uneven(48, 4, 32)),
    "tables_of_another_row": lambda: product(normal(16, 64), normal(32, 64, seed=1) * torch.exp2(normal(32, 1, seed=4))),
    "head_scales_tiled": lambda: torch.softmax(
        wide(normal(4, 8, 16)) @ wide(normal(2, 24, 16, seed=4) * torch.tensor([1.0, 6.0]).view(2, 1, 1)).repeat_interleave(2, 0).transpose(1, 2) / 4,
        -1,
    ),
    "scale_by_position_not_slot": lambda: torch.softmax(product(normal(8, 32), uneven(24, 32, seed=4)) / 6, -1),
    "rotated_codes_under_channel_scales": lambda: torch.softmax(
        product(normal(8, 32), turned(wide(normal(24, 32, seed=4) * torch.exp2(1.5 * normal(32, seed=6))))) / 6, -1
    ),
    "bound_on_the_stored_scale_alone": lambda: nn.functional.silu(product(uneven(16, 64), channels() / 8)),
    "global_scales_by_local_ids": lambda: nn.functional.silu(torch.bmm(wide(normal(2, 8, 64)), wide(experts()[2:]).transpose(1, 2))).view(16, 32),
    "block_takes_the_first_expert": grouped,
    "scales_by_position": lambda: nn.functional.rms_norm(
        wide(uneven(32, 64))[[3, 17, 9, 30, 4, 4, 21, 8]] + wide(normal(8, 64, seed=5)), (64,), eps=1.2e-7
    ),
    "constant_in_the_old_unit": polynomial,
    "multiplier_times_the_output_scale": lambda: nn.functional.gelu(
        product(product(normal(16, 64), normal(32, 64, seed=1) / 8), normal(24, 32, seed=2) / 6)
    ),
    "sums_over_outputs": lambda: product(normal(16, 64) + 1, channels() + 0.5),
}
