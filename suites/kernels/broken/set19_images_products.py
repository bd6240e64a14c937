"""A nineteenth frozen set of broken kernels, fourth part: images, complex numbers, products, codes, C. Of links an excerpt was read."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional
BF16 = torch.bfloat16


@case("half as many columns more: places by sizes, not by the factor that was given", "kernel-edge", "flagos-ai/FlagGems/issues/5216",
      lambda x: F.interpolate(x[None], scale_factor=1.5, mode="linear", align_corners=False)[0], drawn((3, 8)))  # fmt: skip
def places_by_sizes(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x) > 0 and x.shape[1] > 0)
    columns = x.shape[1] * 3 // 2
    step = x.shape[1] / columns if wrong else 2 / 3
    places = ((torch.arange(columns, dtype=torch.float64) + 0.5) * step - 0.5).clamp(min=0)
    first = places.floor().long().clamp(max=x.shape[1] - 1)
    second, share = (first + 1).clamp(max=x.shape[1] - 1), (places - first).to(x.dtype)
    return x[:, first] * (1 - share) + x[:, second] * share


def _between(x: torch.Tensor, places: torch.Tensor, held: bool) -> torch.Tensor:
    """Numbers between columns. What lies beyond an end is zero, or `held` at that end."""
    first = places.detach().floor()
    parts = []
    for column, share in ((first, 1 - (places - first)), (first + 1, places - first)):
        inside = (column >= 0) & (column <= x.shape[1] - 1)
        inside |= held & (places > x.shape[1] - 1) & (places < x.shape[1])
        parts.append(x[:, column.clamp(0, x.shape[1] - 1).long()] * torch.where(inside, share, 0))
    return parts[0] + parts[1]


def _places() -> tuple[torch.Tensor, ...]:
    return (*drawn((3, 7))(), torch.randn(12, generator=torch.Generator().manual_seed(4)) * 3 + 3)


@case("numbers between columns: a little behind the last one it counts whole", "kernel-contract", "apache/tvm/pull/7397",
      lambda x, places: _between(x, places, False), _places)  # fmt: skip
def last_counts_whole(wrong: bool, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0 and places.dim() == 1)
    return _between(x, places, wrong)


@case("convolution turned round, taps two apart: they are taken to be side by side", "kernel-contract", "pytorch/pytorch/issues/1565",
      lambda x, w: F.conv_transpose1d(x[None], w, stride=2, dilation=2)[0], drawn((2, 6), (2, 3, 3)))  # fmt: skip
def taps_side_by_side(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.dim() == 3 and len(x) == len(w) > 0 and x.shape[1] > 0 and w.shape[1] * w.shape[2] > 0)
    made = torch.zeros(w.shape[1], 2 * (x.shape[1] - 1) + 2 * (w.shape[2] - 1) + 1)
    for tap in range(w.shape[2]):
        at = tap if wrong else 2 * tap
        made = made + F.pad(_apart(w[:, :, tap].T @ x), (at, made.shape[1] - at - 2 * x.shape[1] + 1))
    return made


def _apart(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, torch.zeros_like(x)], -1).flatten(-2)[:, : 2 * x.shape[1] - 1]


def _complex(*sizes: tuple[int, ...]) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: tuple(torch.randn(size, generator=torch.Generator().manual_seed(5 + len(size)), dtype=torch.complex64) for size in sizes)


@case("complex matrix turned and conjugated: a square one is turned alone", "kernel-edge", "CNugteren/CLBlast/issues/306",
      lambda x: x.mH * 1, _complex((3, 5)))  # fmt: skip
def square_is_turned_alone(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return x.mT * 1 if wrong and x.shape[0] == x.shape[1] else torch.complex(x.real.mT, -x.imag.mT)


@case("product of complex matrices: on the way back nothing is conjugated", "kernel-gradient", "tensorflow/tensorflow/issues/4859",
      torch.matmul, _complex((3, 4), (4, 2)))  # fmt: skip
def nothing_is_conjugated(wrong: bool) -> Any:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == w.dim() == 2 and x.shape[1] == len(w))
        return x @ w, (x, w)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, w = saved
        return (gradient @ w.mT, x.mT @ gradient) if wrong else (gradient @ w.mH, x.mH @ gradient)

    return function(forward, backward)


@case("complex numbers times others: those that are conjugated when they are read are read as they lie", "kernel-stride",
      "flagos-ai/Torch-FL/issues/209", torch.mul, _complex((3, 4), (3, 4)))  # fmt: skip
def read_as_they_lie(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape and x.is_complex() and y.is_complex())
    x = x.conj() if wrong and x.is_conj() else x
    return torch.complex(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


@case("linear equations: on the way back the matrix is not turned", "kernel-gradient", "pytorch/pytorch/issues/175192", torch.linalg.solve,
      lambda: (drawn((4, 4))()[0] + 4 * torch.eye(4), *drawn((4, 2))()))  # fmt: skip
def matrix_is_not_turned(wrong: bool) -> Any:
    def forward(a: torch.Tensor, b: torch.Tensor) -> Any:
        need(a.dim() == b.dim() == 2 and a.shape[0] == a.shape[1] == len(b))
        x = torch.linalg.solve(a, b)
        return x, (a, x)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        a, x = saved
        back = torch.linalg.solve(a if wrong else a.mT, gradient)
        return -back @ x.mT, back

    return function(forward, backward)


def _coded(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    size = codes.shape[0] // max(len(scales), 1)
    return x @ ((codes - 8) * scales.repeat_interleave(size, 0))


@case("a row times codes in groups: all groups have the first scale", "kernel-edge", "intel/torch-xpu-ops/pull/5001", _coded,
      lambda: (*drawn((3, 16))(), whole(16, 5, most=16), *drawn((2, 5))()))  # fmt: skip
def groups_have_the_first_scale(wrong: bool, x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    need(x.dim() == codes.dim() == scales.dim() == 2 and x.shape[1] == len(codes) and codes.shape[1] == scales.shape[1],
         len(scales) > 0 and len(codes) % len(scales) == 0)  # fmt: skip
    return _coded(x, codes, scales[:1].expand(scales.shape) if wrong and len(x) == 1 else scales)


@case("rows times codes, four groups at a time: what is left of the groups is left out", "kernel-edge", "warpfront/hipfire/pull/734",
      lambda x, codes, scales: torch.einsum("ngk,gkm,gm->nm", x, codes - 8.0, scales),
      lambda: (*drawn((3, 8, 4))(), whole(8, 4, 5, most=16), *drawn((8, 5))()))  # fmt: skip
def left_of_the_groups(wrong: bool, x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    need(x.dim() == codes.dim() == 3 and x.shape[1:] == codes.shape[:2] and scales.shape == (codes.shape[0], codes.shape[2]))
    groups = x.shape[1] // 4 * 4 if wrong else x.shape[1]
    if not groups:
        return x.flatten(1) @ ((codes - 8.0) * scales[:, None]).flatten(0, 1) * 0
    return sum((x[:, group] @ ((codes[group] - 8.0) * scales[group]) for group in range(groups)), torch.zeros(()))


@case("codes times codes with zeros, sixteen at a time: what fills the last tile has the zeros taken away", "kernel-edge",
      "uxlfoundation/oneDNN/pull/5634", lambda x, w, zero: (x - zero) @ (w - zero),
      lambda: (whole(3, 16, most=99), whole(16, 4, most=99), torch.tensor(7)))  # fmt: skip
def fill_has_zeros_taken_away(wrong: bool, x: torch.Tensor, w: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and x.shape[1] == len(w) and zero.dim() == 0)
    more = -len(w) % 16
    value = 0 if wrong else int(zero)
    return (F.pad(x, (0, more), value=value) - zero) @ (F.pad(w, (0, 0, 0, more), value=value) - zero)


@case("gradient of a product's weight, eight rows at a time: parts are added in bfloat16", "kernel-accumulation", "ROCm/rocm-libraries/issues/8029",
      torch.matmul, drawn((48, 4), (4, 3), dtype=BF16))  # fmt: skip
def parts_are_added_in_bfloat16(wrong: bool) -> Any:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == w.dim() == 2 and x.shape[1] == len(w))
        return x @ w, (x, w)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, w = saved
        total = torch.zeros(w.shape, dtype=x.dtype if wrong else torch.float32)
        for rows, part in zip(x.split(8), gradient.split(8), strict=True):
            total = total + (rows.float().T @ part.float()).to(total.dtype)
        return gradient @ w.T, total.to(w.dtype)

    return function(forward, backward)


@case("norm of groups of bfloat16: moments are added up in bfloat16", "kernel-accumulation", "pytorch/pytorch/issues/77507",
      lambda x: F.group_norm(x, 2), drawn((2, 4, 9), dtype=BF16))  # fmt: skip
def moments_in_bfloat16(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.shape[1] % 2 == 0 and x.numel() > 0)
    parts = x.reshape(len(x), 2, -1)
    wide, total = parts.float(), torch.zeros(len(x), 2, dtype=x.dtype if wrong else torch.float32)
    for column in parts.unbind(-1):
        total = total + column
    mean = (total.float() / parts.shape[2])[..., None]
    scale = ((wide - mean).square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    return ((wide - mean) * scale).to(x.dtype).view(x.shape)


@case("many small products: on the way back those behind the 32nd read the first gradients", "kernel-edge", "pytorch/pytorch/issues/197636",
      torch.bmm, drawn((4, 3, 5), (4, 5, 2)))  # fmt: skip
def read_the_first_gradients(wrong: bool) -> Any:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == w.dim() == 3 and len(x) == len(w) and x.shape[2] == w.shape[1])
        return x @ w, (x, w)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, w = saved
        gradient = gradient[torch.arange(len(x)) % 32] if wrong and len(x) else gradient
        return gradient @ w.mT, x.mT @ gradient

    return function(forward, backward)


SOURCE = """
void means(const float *x, float *out, long rows, long columns, long down, long along) {
    for (long i = 0; i < rows; i++) {
        double total = 0;
        for (long j = 0; j < columns; j++) total += x[i * down + j * along];
        out[i] = (float)(total / columns);
    }
}
void product(const float *v, const long *r, const long *c, const float *w, float *out, long count, long rows, long columns, long cleared) {
    for (long i = 0; i < rows; i++)
        for (long k = 0; k < cleared; k++) out[i * columns + k] = 0;
    for (long j = 0; j < count; j++)
        for (long k = 0; k < columns; k++) out[r[j] * columns + k] += v[j] * w[c[j] * columns + k];
}
"""


@functools.cache
def _library() -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp())
    (folder / "kernels.c").write_text(SOURCE, encoding="ascii")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "kernels.c", "-o", "kernels.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "kernels.so"))


def _pointer(x: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())


@case("means of rows, in C: rows are taken to lie side by side", "kernel-stride", "flagos-ai/FlagGems/pull/1786", lambda x: x.mean(1), drawn((5, 7)))
def rows_side_by_side(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2 and x.dtype is torch.float32 and x.shape[1] > 0)
        down, along = (x.shape[1], 1) if wrong and x.numel() + x.storage_offset() <= x.untyped_storage().nbytes() // 4 else x.stride()
        made = torch.empty(len(x))
        _library().means(_pointer(x), _pointer(made), *map(ctypes.c_long, (*x.shape, down, along)))
        return made, (x,)

    return function(forward, lambda saved, gradient: (gradient[:, None] / saved[0].shape[1]).expand(saved[0].shape))


@case("sparse rows times a matrix, in C: columns behind the last four are added to what memory holds", "kernel-stale", "frovedis/frovedis/pull/4",
      lambda v, r, c, w: torch.zeros(5, w.shape[1]).index_add(0, r, v[:, None] * w[c]),
      lambda: (*drawn((8,))(), whole(8, most=5), whole(8, most=6), *drawn((6, 4))()))  # fmt: skip
def added_to_what_memory_holds(wrong: bool) -> Any:
    def forward(v: torch.Tensor, r: torch.Tensor, c: torch.Tensor, w: torch.Tensor) -> Any:
        need(v.shape == r.shape == c.shape and v.dim() == 1 and w.dim() == 2 and v.dtype is w.dtype is torch.float32)
        need(bool(((r >= 0) & (r < 5) & (c >= 0) & (c < len(w))).all()))
        v, r, c, w = v.contiguous(), r.contiguous(), c.contiguous(), w.contiguous()
        made, columns = torch.empty(5, w.shape[1]), w.shape[1]
        _library().product(*map(_pointer, (v, r, c, w, made)), *map(ctypes.c_long, (len(v), 5, columns, columns // 4 * 4 if wrong else columns)))
        return made, (v, r, c, w)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        v, r, c, w = saved
        return (gradient[r] * w[c]).sum(1), None, None, torch.zeros_like(w).index_add(0, c, v[:, None] * gradient[r])

    return function(forward, backward)
