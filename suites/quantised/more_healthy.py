"""Healthy code that was written after the eighth batch's mends, to see whom they accuse: scales that cancel in other ways than they came."""

from __future__ import annotations

import torch
from casts_by_hand import to_float8, to_int8
from float8_by_hand import E4M3, LOW, channels, normal
from torch import nn


def layers_in_integers() -> torch.Tensor:
    """Three layers whose sums are requantised from one scale to the next, which a calibration has made."""
    x, weights = normal(16, 64), [normal(64, 64, seed=seed) / 8 for seed in (1, 2, 3)]
    ranges, h = [x.abs().amax()], x
    for w in weights:
        h = (h @ w.t()).relu()
        ranges.append(h.abs().amax())
    scales = [each / 127 for each in ranges]
    q = torch.round(x / scales[0]).clamp(-128, 127).to(torch.int8)
    for place, w in enumerate(weights):
        codes, scale = to_int8(w, 1)
        sums = q.to(torch.int32) @ codes.to(torch.int32).t()
        q = torch.round(sums.float() * (scales[place] * scale.t() / scales[place + 1])).clamp(0, 127).to(torch.int8)
    return torch.softmax(q.float() * scales[-1], -1).to(LOW)


def over_another_tensors_greatest() -> torch.Tensor:
    """A dequantised tensor is divided by the greatest magnitude of another."""
    codes, scale = to_int8(normal(16, 64), (0, 1))
    return torch.sigmoid(codes.float() * scale / (normal(16, 64, seed=1) * 3).abs().amax()).to(LOW)


def over_its_own_greatest() -> torch.Tensor:
    """A product of codes is divided by its greatest magnitude, so that it needs no scale."""
    (qa, _), (qw, _) = to_int8(normal(16, 64), (0, 1)), to_int8(normal(32, 64, seed=1), (0, 1))
    y = qa.float() @ qw.float().t()
    return torch.sigmoid(y / y.abs().amax()).to(LOW)


def over_the_norm_of_rows() -> torch.Tensor:
    """The scales of rows are left out, since rows are divided by their norms."""
    (qa, _), (qw, scale) = to_int8(normal(16, 64), 1), to_int8(normal(32, 64, seed=1), (0, 1))
    return nn.functional.normalize(qa.float() @ qw.float().t() * scale, dim=1).exp().to(LOW)


def greatest_that_decays() -> torch.Tensor:
    """A scale of earlier steps, which decays; data is quantised and dequantised under the same."""
    w, out, greatest = normal(32, 64, seed=1), [], normal(16, 64).abs().amax()
    for step in range(5):
        x, scale = normal(16, 64, seed=step), greatest / 448
        out.append(torch.relu((x / scale).clamp(-448, 448).to(E4M3).float() * scale @ w.t()))
        greatest = torch.maximum(x.abs().amax(), 0.9 * greatest)
    return torch.cat(out).to(LOW)


def greatest_of_all_shards() -> torch.Tensor:
    """Shards of a weight share the greater of their scales."""
    parts = channels().chunk(2)
    scale = torch.maximum(parts[0].abs().amax(), parts[1].abs().amax()) / 448
    return torch.cat([torch.tanh(normal(8, 64) @ (each / scale).to(E4M3).float().t() * scale) for each in parts], 1).to(LOW)


def codes_of_what_rounding_left() -> torch.Tensor:
    """A weight is quantised, and what is left once more under a scale of its own. Both make a product."""
    x, w = normal(8, 64), channels() * 0.1
    codes, scale = to_int8(w, 1)
    rest, fine = to_int8(w - codes.float() * scale, 1)
    return torch.tanh(x @ codes.float().t() * scale.t() + x @ rest.float().t() * fine.t()).to(LOW)


def sums_under_a_shared_scale() -> torch.Tensor:
    """Gradients of three ranks are rounded under the greatest of their scales, and added as integers."""
    gradients = [normal(32, 64, seed=rank) for rank in range(3)]
    shared = torch.stack([each.abs().amax() for each in gradients]).max() / 127
    total = torch.stack([torch.round(each / shared).to(torch.int32) for each in gradients]).sum(0)
    return (normal(32, 64, seed=9) - 0.1 * (total.float() * shared / 3)).exp().to(LOW)


def gathered_with_scales() -> torch.Tensor:
    """Codes of three ranks are gathered with their scales, and averaged."""
    held = [to_int8(normal(32, 64, seed=rank) * (rank + 1), (0, 1)) for rank in range(3)]
    codes, scales = (torch.stack(each) for each in zip(*held, strict=True))
    return torch.sigmoid((codes.float() * scales).mean(0)).to(LOW)


def block_floating_point() -> torch.Tensor:
    """Blocks share the exponent of their greatest magnitude."""
    x = normal(16, 4, 16)
    exponent = torch.frexp(x.abs().amax(-1, keepdim=True))[1]
    codes = torch.round(torch.ldexp(x, 7 - exponent)).clamp(-127, 127)
    return torch.sigmoid(torch.ldexp(codes, exponent - 7).view(16, 64) @ normal(64, 8, seed=1)).to(LOW)


def powers_of_two() -> torch.Tensor:
    """Weights are rounded to powers of two under the greatest of their row."""
    w = channels()
    greatest = w.abs().amax(1, keepdim=True)
    exponent = torch.round(torch.log2(w.abs() / greatest)).clamp(-7, 0)
    return torch.tanh(normal(8, 64) @ (w.sign() * torch.exp2(exponent) * greatest).t()).to(LOW)


def layers_equalised() -> torch.Tensor:
    """Channels between two layers are made equally large before both are quantised; ReLU passes factors above zero."""
    x, first, second = normal(8, 64), channels(), normal(32, 64, seed=5)
    by = (first.abs().amax(1) * second.abs().amax(0)).sqrt() / second.abs().amax(0)
    (q1, s1), (q2, s2) = to_int8(first / by[:, None], (0, 1)), to_int8(second * by, (0, 1))
    return torch.tanh(torch.relu(x @ q1.float().t() * s1) @ q2.float().t() * s2).to(LOW)


def keys_equalised() -> torch.Tensor:
    """Channels of keys are divided by what queries are multiplied by."""
    q, k, v = normal(2, 16, 32), normal(2, 16, 32, seed=1) * torch.exp2(normal(32, seed=4)), normal(2, 16, 32, seed=2)
    by = k.abs().amax((0, 1)).sqrt()
    (cq, sq), (ck, sk) = to_int8(q * by, -1), to_int8(k / by, -1)
    return (torch.softmax(cq.float() @ ck.float().mT * sq * sk.mT / 32**0.5, -1) @ v).to(LOW)


def scales_in_the_other_operand() -> torch.Tensor:
    """Queries are multiplied by the scale of the keys, and weights of attention by that of the values."""
    q, k, v = normal(2, 16, 32), normal(2, 16, 32, seed=1), normal(2, 16, 32, seed=2)
    (ck, sk), (cv, sv) = to_float8(k, (0, 1, 2)), to_float8(v, (0, 1, 2))
    return ((torch.softmax((q * (sk / 32**0.5)) @ ck.float().mT, -1) * sv) @ cv.float()).to(LOW)


def probabilities_in_integers() -> torch.Tensor:
    """Weights of attention in int8 under 1/127."""
    q, k, v = normal(2, 16, 32), normal(2, 16, 32, seed=1), normal(2, 16, 32, seed=2)
    codes, scale = to_int8(v, 1)
    weights = torch.round(torch.softmax(q @ k.mT / 5, -1) * 127).to(torch.int8)
    return ((weights.float() @ codes.float()) * (scale / 127)).to(LOW)


def signs_and_their_mean() -> torch.Tensor:
    """Signs of a weight under the mean magnitude of their row, and inputs in int8."""
    x, w = normal(8, 64), channels()
    scale = x.abs().amax() / 127
    return torch.relu(torch.round(x / scale) @ w.sign().t() * (scale * w.abs().mean(1))).to(LOW)


def scores_over_the_greatest() -> torch.Tensor:
    """Scores of float8 operands are dequantised, and divided by the greatest of them."""
    (qa, sa), (qb, sb) = to_float8(normal(16, 32), (0, 1)), to_float8(normal(16, 32, seed=1), (0, 1))
    scores = qa.float() @ qb.float().t() * (sa * sb)
    return torch.softmax(scores / scores.abs().amax(), -1).to(LOW)


def sound_companded() -> torch.Tensor:
    """Sound in eight bits by the mu-law."""
    x, mu = torch.tanh(normal(64, 64)), torch.tensor(255.0)
    codes = torch.round(x.sign() * torch.log1p(mu * x.abs()) / torch.log1p(mu) * 127).clamp(-128, 127).to(torch.int8)
    read = codes.float() / 127
    return (read.sign() * torch.expm1(read.abs() * torch.log1p(mu)) / mu).to(LOW)


def levels_of_a_hard_tanh() -> torch.Tensor:
    """Activations are limited to 1 and rounded to sevenths (DoReFa)."""
    return ((torch.clamp(normal(64, 64) * 3, -1, 1) * 7).round() / 7).to(LOW)


def moves_that_are_limited() -> torch.Tensor:
    """Motion in whole pixels, limited to a window and to a frame."""
    return torch.cat([(normal(64, 2) * 30).round().clamp(-7, 7), (normal(64, 2) * 300).round().clamp(-127, 127)]).to(LOW)


def zero_points_of_a_convolution() -> torch.Tensor:
    """A convolution in integers whose inputs have a zero point."""
    x, w = normal(2, 8, 12, 12).relu() - 0.2, normal(16, 8, 3, 3, seed=1)
    low, high = x.amin(), x.amax()
    scale, each = (high - low) / 255, w.abs().amax((1, 2, 3)) / 127
    zero = torch.round(-low / scale)
    codes = (torch.round(x / scale) + zero).clamp(0, 255)
    sums = nn.functional.conv2d(codes - zero, torch.round(w / each.view(-1, 1, 1, 1)), padding=1)
    return torch.relu(sums * (scale * each.view(-1, 1, 1))).to(LOW)


HEALTHY = (layers_in_integers, over_another_tensors_greatest, over_its_own_greatest, over_the_norm_of_rows, greatest_that_decays,
           greatest_of_all_shards, codes_of_what_rounding_left, sums_under_a_shared_scale, gathered_with_scales, block_floating_point,
           powers_of_two, layers_equalised, keys_equalised, scales_in_the_other_operand, probabilities_in_integers, signs_and_their_mean,
           scores_over_the_greatest, sound_companded, levels_of_a_hard_tanh, moves_that_are_limited, zero_points_of_a_convolution)  # fmt: skip
