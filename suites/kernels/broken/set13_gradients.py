"""The thirteenth frozen set of broken kernels, second part: gradients, and other functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional


def _ctc(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logs = x.log_softmax(-1)[:, None]
    return F.ctc_loss(logs, y[None], torch.tensor([len(x)]), torch.tensor([len(y)]), reduction="none", zero_infinity=True)


@case("ctc: where no alignment fits, the gradient is that of a softmax", "kernel-edge", "rwth-i6/returnn/issues/1835", _ctc,
      lambda: (*drawn((9, 5))(), whole(3, most=5, least=1)))  # fmt: skip
def no_alignment_fits(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, y.dim() == 1, len(y) > 0, x.numel() > 0, not bool(((y < 1) | (y >= x.shape[1])).any()))
    logs = x - x.logsumexp(-1, keepdim=True)
    labels = [*torch.stack([torch.zeros_like(y), y], 1).flatten().tolist(), 0]
    fits = len(x) >= len(y) + int((y.diff() == 0).sum())
    if not fits:
        none = 0 * x.nan_to_num(0, 0, 0).sum()[None]
        sums = x.logsumexp(-1).sum()
        return none + (sums - sums.detach() if wrong else 0)
    state = [logs[0, 0], logs[0, labels[1]]] + [torch.tensor(-1e30)] * (len(labels) - 2)
    for row in logs[1:]:
        now = []
        for place, label in enumerate(labels):
            come = [state[place]] + ([state[place - 1]] if place else [])
            if place > 1 and label and label != labels[place - 2]:
                come.append(state[place - 2])
            now.append(torch.stack(come).logsumexp(0) + row[label])
        state = now
    return -torch.logaddexp(state[-1], state[-2])[None]


def _line(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Numbers of a row at places between its columns; beyond the ends those of the ends."""
    at = places.clamp(0, x.shape[0] - 1)
    low = at.detach().nan_to_num().floor().long()
    share = at - low
    return (1 - share) * x[low] + share * x[(low + 1).clamp(max=len(x) - 1)]


def _between(slope: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def forward(x: torch.Tensor, places: torch.Tensor) -> Any:
        need(x.dim() == 1, places.dim() == 1, len(x) > 0)
        at = places.clamp(0, len(x) - 1)
        low = at.nan_to_num().long()
        return torch.lerp(x[low], x[(low + 1).clamp(max=len(x) - 1)], at - low), (x, places, at, low)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, places, at, low = saved
        high = (low + 1).clamp(max=len(x) - 1)
        dx = torch.zeros(len(x)).index_add(0, low, gradient * (1 - (at - low))).index_add(0, high, gradient * (at - low))
        return dx, gradient * slope(x, places, low, high)

    return function(forward, backward)


@case("numbers between columns: at the last one the slope leads to zero", "kernel-edge", "pytorch/pytorch/pull/32829", _line, drawn((8,), (6,)))
def leads_to_zero(wrong: bool) -> Callable[..., Any]:
    def slope(x: torch.Tensor, places: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        inside = (places >= 0) & (places <= len(x) - 1)
        right = torch.where(inside, x[high] - x[low], 0.0)
        return torch.where(places == len(x) - 1, -x[-1], right) if wrong else right

    return _between(slope)


@case("numbers between columns: places beyond the ends have the slope of the end", "kernel-gradient", "ooples/AiDotNet.Tensors/pull/22", _line,
      drawn((8,), (6,)))  # fmt: skip
def slope_of_the_end(wrong: bool) -> Callable[..., Any]:
    def slope(x: torch.Tensor, places: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        inside = (places >= 0) & (places <= len(x) - 1)
        return x[high] - x[low] if wrong else torch.where(inside, x[high] - x[low], 0.0)

    return _between(slope)


def _shared(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return _line(x, ((g + 1) * len(x) - 1) / 2)


@case("numbers at places from -1 to 1: on the way back the ends are the middles of pixels", "kernel-gradient", "ooples/AiDotNet.Tensors/pull/582",
      _shared, drawn((8,), (6,)))  # fmt: skip
def middles_of_pixels(wrong: bool, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, g.dim() == 1, len(x) > 0)
    scale = (len(x) - 1) / 2 if wrong else len(x) / 2
    at = (g * scale + ((g + 1) * len(x) - 1).detach() / 2 - (g * scale).detach()) if wrong else g * scale + (len(x) - 1) / 2
    held = at.clamp(min=0).clamp(max=len(x) - 1)
    low = held.detach().nan_to_num().long()
    one, two = x[low], x[(low + 1).clamp(max=len(x) - 1)]
    return one * (low + 1 - held) + two * (held - low)


def _mirrored(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    last = max(len(x) - 1, 1)
    at = places % (2 * last)
    return _line(x, torch.where(at > last, 2 * last - at, at))


@case("numbers beyond the ends, mirrored: shares of before they were mirrored", "kernel-contract", "pytorch/pytorch/pull/10051", _mirrored,
      drawn((4,), (9,)))  # fmt: skip
def before_they_were_mirrored(wrong: bool, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, places.dim() == 1, len(x) > 0)
    last = max(len(x) - 1, 1)
    at = places - 2 * last * (places.detach() / (2 * last)).floor()
    folded = torch.where(at > last, 2 * last - at, at).clamp(max=len(x) - 1)
    low = folded.detach().nan_to_num().long().clamp(0, len(x) - 1)
    share = at - at.detach().floor() if wrong else folded - low
    return torch.lerp(x[low], x[(low + 1).clamp(max=len(x) - 1)], share)


def _bags(table: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Row 2 of the table is padding."""
    return (torch.where(places == 2, 0.0, weights)[..., None] * table[places]).sum(1)


@case("weighed bags: the weight of padding has a gradient", "kernel-mask", "flagos-ai/FlagGems/pull/3683", _bags,
      lambda: (*drawn((6, 4), (5, 3))(), whole(5, 3, most=6)))  # fmt: skip
def weight_of_padding(wrong: bool) -> Callable[..., Any]:
    def forward(table: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> Any:
        need(table.dim() == 2, weights.dim() == 2, weights.shape == places.shape, not bool(((places < 0) | (places >= len(table))).any()))
        kept = torch.where(places == 2, 0.0, weights)
        return torch.einsum("bk,bkc->bc", kept, table[places]), (table, kept, places)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        table, kept, places = saved
        rows = kept[..., None] * gradient[:, None]
        slopes = (table[places] * gradient[:, None]).sum(-1)
        made = torch.zeros(table.shape).index_add(0, places.flatten(), rows.flatten(0, 1))
        return made, slopes if wrong else torch.where(places == 2, 0.0, slopes), None

    return function(forward, backward)


@case("largest of windows that overlap: gradients are stored, not added", "kernel-gradient", "ROCm/composable_kernel/pull/750",
      lambda x: F.max_pool1d(x[None], 3, stride=1)[0], drawn((3, 9)))  # fmt: skip
def stored_not_added(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2, x.shape[1] >= 3, len(x) > 0)
        most, step = x.unfold(-1, 3, 1).max(-1)
        return most, (step + torch.arange(x.shape[1] - 2), x)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        places, x = saved
        made = torch.zeros(x.shape)
        return made.scatter(1, places, gradient) if wrong else made.scatter_add(1, places, gradient)

    return function(forward, backward)


@case("causal convolution: on the way back all sequences read the first one's gradient", "kernel-gradient",
      "flashserve/flash-linear-attention-npu/pull/31", lambda x, w: F.conv1d(F.pad(x, (w.shape[1] - 1, 0)), w[:, None], groups=len(w)),
      drawn((2, 3, 8), (3, 3)))  # fmt: skip
def read_the_first_one(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == 3, w.dim() == 2, x.shape[1] == len(w), min(*x.shape, *w.shape) > 0)
        windows = F.pad(x, (w.shape[1] - 1, 0)).unfold(-1, w.shape[1], 1)
        return torch.einsum("bcnt,ct->bcn", windows, w), (windows, w)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        windows, w = saved
        given = gradient[:1].expand(gradient.shape) if wrong else gradient
        dx = F.pad(given, (0, w.shape[1] - 1)).unfold(-1, w.shape[1], 1)
        return torch.einsum("bcnt,ct->bcn", dx, w.flip(1)), torch.einsum("bcnt,bcn->ct", windows, given)

    return function(forward, backward)


@case("rows stored over a table: the table's gradient goes on where it was stored over", "kernel-gradient", "PaddlePaddle/Paddle/pull/30604",
      lambda table, x, slots: table.index_copy(0, slots, x), lambda: (*drawn((8, 4), (3, 4))(), torch.tensor([5, 1, 6])))  # fmt: skip
def where_stored_over(wrong: bool) -> Callable[..., Any]:
    def forward(table: torch.Tensor, x: torch.Tensor, slots: torch.Tensor) -> Any:
        need(table.dim() == 2, x.dim() == 2, table.shape[1] == x.shape[1], slots.shape == x.shape[:1])
        need(not bool(((slots < 0) | (slots >= len(table))).any()), slots.unique().numel() == slots.numel())
        made = table.clone()
        made[slots] = x
        return made, (slots,)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        (slots,) = saved
        return gradient.clone() if wrong else gradient.index_fill(0, slots, 0.0), gradient[slots], None

    return function(forward, backward)


def _reverse(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    one, two = x.log_softmax(-1), t.log_softmax(-1)
    return (one.exp() * (one - two)).sum(-1)


@case("divergence of a student: the slope of a share that is zero is NaN", "kernel-rounding", "MakazhanAlpamys/Soup/issues/719", _reverse,
      drawn((4, 6), (4, 6)))  # fmt: skip
def share_that_is_zero(wrong: bool, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == t.shape, x.shape[1] > 0)
    one, two = x - x.logsumexp(-1, keepdim=True), t - t.logsumexp(-1, keepdim=True)
    if wrong:
        return F.kl_div(two, one.exp(), reduction="none").sum(-1)
    return F.kl_div(two, one, reduction="none", log_target=True).sum(-1)


@case("divergence from a teacher: the other way round", "kernel-contract", "paiml/aprender/pull/2153", lambda x, t: F.kl_div(
    x.log_softmax(-1), t.log_softmax(-1), log_target=True, reduction="none").sum(-1), drawn((4, 6), (4, 6)))  # fmt: skip
def other_way_round(wrong: bool, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == t.shape, x.shape[1] > 0)
    return _reverse(x, t) if wrong else _reverse(t, x)
