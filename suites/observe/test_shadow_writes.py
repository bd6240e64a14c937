"""In-place ops, out=, and storages handled by hand: the shadow of a tensor is its storage's, seen through sizes and strides."""

from __future__ import annotations

import pytest
import torch
from beside import Program, check, normal, seen, shadow_now, twins

import precheck

LOWS = (torch.bfloat16, torch.float16)


def columns(dtype: torch.dtype) -> list[torch.Tensor]:
    x = normal(6, 6).to(dtype)
    x[:, 1:].add_(x[:, :1])
    x.t().mul_(0.3)
    x.diagonal().sub_(1 / 3)
    x.unsqueeze(0).transpose(1, 2).exp_()
    return [x]


def runs(dtype: torch.dtype) -> list[torch.Tensor]:
    x = normal(6, 6).to(dtype)
    y = x.view(-1)[3:9]
    y.div_(3)
    x[::2] = x[1::2]
    x.flatten()[::7].zero_()
    return [x, y, x[2:, 1], x.as_strided((3, 3), (1, 2), 1) * 2]


def slices_assigned(dtype: torch.dtype) -> list[torch.Tensor]:
    x, y = normal(4, 4).to(dtype), normal(4, 4, seed=1).to(dtype)
    x[1] = y[2] / 3
    x[:, 0] += 1 / 3
    x[torch.tensor([0, 3])] = y[:2]
    x.index_add_(0, torch.tensor([1, 1]), y[:2], alpha=0.7)
    x.scatter_add_(0, torch.zeros(1, 4, dtype=torch.int64), y[3:])
    x.masked_fill_(torch.eye(4, dtype=torch.bool), 1 / 3)
    return [x]


def read_and_written(dtype: torch.dtype) -> list[torch.Tensor]:
    x = normal(5, 5).to(dtype)
    x.add_(x).mul_(x).sub_(x.t().clone(), alpha=0.3)
    x[1:].add_(x[:-1].clone())
    return [x]


def out_given(dtype: torch.dtype) -> list[torch.Tensor]:
    a, b, out = normal(4, 4).to(dtype), normal(4, 4, seed=1).to(dtype), torch.empty(4, 4, dtype=dtype)
    torch.mul(a, b, out=out)
    torch.mm(out, b, out=a)
    torch.add(a, b, out=out[:])
    torch.exp(b[0], out=out[2])
    torch.add(out, a, out=out)
    return [a, out]


def out_grown(dtype: torch.dtype) -> list[torch.Tensor]:
    a, b = normal(4, 4).to(dtype), normal(4, 4, seed=1).to(dtype)
    out, joined, values, where = (torch.empty(0, dtype=kind) for kind in (dtype, dtype, dtype, torch.int64))
    torch.add(a, b, out=out)
    torch.cat([a, b], out=joined)
    torch.sort(a.flatten()[:9].view(3, 3) / 3, out=(values, where))
    first = out * 2
    out.resize_(0)
    torch.add(normal(8, 8).to(dtype), 1 / 3, out=out)
    return [out, first, joined * 2, values]


def resized(dtype: torch.dtype) -> list[torch.Tensor]:
    x, w = normal(8).to(dtype) * 1.1, normal(4).to(dtype) * 1.3
    w.resize_(8)
    w[4:] = x[4:] * 2
    x.resize_(3)
    return [w, w * 2, x / 3]


def set_elsewhere(dtype: torch.dtype) -> list[torch.Tensor]:
    x = normal(8).to(dtype) * 1.1
    y = torch.empty(0, dtype=dtype).set_(x.untyped_storage(), 2, (3,), (2,))
    y.mul_(3)
    z = torch.empty(5, dtype=dtype).set_(x)
    z.add_(1 / 3)
    return [x, y, z]


def storage_emptied(dtype: torch.dtype) -> list[torch.Tensor]:
    """As FSDP frees the gathered weights between uses, and gathers them again."""
    x = normal(8).to(dtype) * 1.1
    kept, storage = x.clone(), x.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    kept.mul_(1.1)
    storage.resize_(size)
    x.copy_(kept)
    return [x * 3]


def storage_grown(dtype: torch.dtype) -> list[torch.Tensor]:
    x = normal(8).to(dtype) * 1.1
    storage = x.untyped_storage()
    storage.resize_(2 * storage.nbytes())
    y = torch.empty(0, dtype=dtype).set_(storage, 0, (16,), (1,))
    y[8:] = y[:8] * 2
    return [x * 3, y]


def data_replaced(dtype: torch.dtype) -> list[torch.Tensor]:
    p = torch.nn.Parameter(normal(4).to(dtype))
    p.data = p.data * 1.1
    p.data.add_(1 / 3)
    a, b = normal(4).to(dtype) * 1.1, normal(4, seed=1).to(dtype) * 1.2
    torch.utils.swap_tensors(a, b)
    return [p, a * 2, b * 3]


def lists(dtype: torch.dtype) -> list[torch.Tensor]:
    """foreach ops return nothing: what they wrote is told by their schemas."""
    a = [normal(3).to(dtype), normal(2, 2).to(dtype)]
    torch._foreach_mul_(a, 1 / 3)
    b = torch._foreach_add(a, a, alpha=0.3)
    torch._foreach_addcdiv_(a, b, [x.abs() + 1 for x in b], 0.1)
    torch._foreach_lerp_(a, list(b), [0.1, 0.2])
    torch._foreach_copy_(b, a)
    return [*a, *b, *torch._foreach_norm(a)]


PROGRAMS: tuple[Program, ...] = (
    columns, runs, slices_assigned, read_and_written, out_given, out_grown, resized, set_elsewhere, storage_emptied, storage_grown,
    data_replaced, lists,
)  # fmt: skip


@pytest.mark.parametrize("low", LOWS, ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_is_written_is_written_in_the_shadow(program: Program, low: torch.dtype) -> None:
    check(program, low)


def test_bits_written_as_integers_become_the_reference() -> None:
    """Nothing says what float32 would hold where a program writes bits of bfloat16: the shadow begins again from there."""

    def program(dtype: torch.dtype) -> list[torch.Tensor]:
        x = normal(64).to(dtype) * 1.1
        x.view(torch.int16 if dtype == torch.bfloat16 else torch.int32).zero_()
        return [x + 1]

    check(program)


def test_a_write_that_torch_refuses_is_refused_in_torchs_words() -> None:
    x = normal(8).bfloat16()
    with precheck.watch() as report, pytest.raises(RuntimeError, match="single memory location"):
        x[1:].add_(x[:-1])
    assert report.facts["opaque"] == {}


def test_a_shadow_never_shares_memory_with_the_run() -> None:
    """`.to(float32)` of a float32 tensor is no copy: the shadow's next in-place op would reach the user's."""

    def program(dtype: torch.dtype) -> list[torch.Tensor]:
        wide = normal(16)
        mixed = wide.clone().mul_(normal(16).to(dtype))
        same = mixed.to(torch.float32)
        same.bernoulli_(0.5).div_(0.5)
        wide.add_(mixed)
        return [wide, mixed, same]

    twins(program).unchanged()
    with precheck.watch():
        kept = program(torch.bfloat16)
        shadows = [seen(tensor) for tensor in kept if shadow_now().memory.find(tensor) is not None]
        assert shadows
        assert not {tensor.data_ptr() for tensor in kept} & {shadow.data_ptr() for shadow in shadows}
