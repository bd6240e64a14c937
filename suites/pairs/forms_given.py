"""More forms (`forms.py`): what models return, and what they are given."""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from forms import FORMS, ROWS, Form, W, net, rows, squares, two
from torch import nn
from torch.nn.utils import rnn


class Wrapper(nn.Module):
    """A network whose output is put into a container."""

    def __init__(self, inner: nn.Module, put: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.put = inner, put

    def forward(self, x: torch.Tensor) -> Any:
        return self.put(self.inner(x))


@dataclasses.dataclass
class Made:
    logits: torch.Tensor
    more: Any = None


Pair = collections.namedtuple("Pair", "first second")


class Own:
    """A class that nobody knows."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 2


def put(code: Callable[[torch.Tensor], Any]) -> Callable[[], Form]:
    return lambda: _put(code)


def _put(code: Callable[[torch.Tensor], Any]) -> Form:
    inner = net()
    return Form(Wrapper(inner, code), Wrapper(copy.deepcopy(inner), code), rows(), squares)


FORMS |= {
    "returns a dataclass": put(lambda out: Made(out, {"second": [out * 2, None]})),
    "returns a dict of lists": put(lambda out: {"a": [out, out * 2], "b": [], "c": {"d": out}}),
    "returns a named tuple": put(lambda out: Pair(out, out * 2)),
    "returns None too": put(lambda out: (out, None)),
    "returns a packed sequence": put(lambda out: rnn.pack_padded_sequence(out[..., None], torch.tensor([W, 5, 4, 2]), batch_first=True)),
    "returns a sparse tensor": put(lambda out: out.relu().float().to_sparse()),
    "returns rows compressed": put(lambda out: out.relu().float().to_sparse_csr()),
    "returns complex numbers": put(lambda out: torch.complex(out.float(), out.float() * 2)),
    "returns truths too": put(lambda out: (out, out > 0)),
    "returns places too": put(lambda out: (out, out.argmax(-1))),
    "returns numbers and words": put(lambda out: (out, 3, 2.5, "word", True)),
    "returns a number": put(lambda out: (out, out.detach().float().sum().item())),
    "returns a scalar": put(lambda out: out.float().sum()),
    "returns nothing": lambda: dataclasses.replace(_put(lambda out: None), loss=None),
    "returns truths alone": lambda: dataclasses.replace(_put(lambda out: out > 0), loss=None),
    "returns an empty tensor": put(lambda out: (out, out[:0])),
    "returns a class of its own": lambda: dataclasses.replace(_put(Own), loss=lambda out: out.value.float().square().mean()),
    "returns a generator": lambda: dataclasses.replace(_put(lambda out: (each for each in [out, out])), loss=None),
    "returns an iterator of rows": lambda: dataclasses.replace(_put(iter), loss=None),
    "returns ragged rows": lambda: dataclasses.replace(_put(lambda out: torch.nested.nested_tensor([out[0], out[1, :3]])), loss=None),
    "returns a distribution": lambda: dataclasses.replace(
        _put(lambda out: torch.distributions.Normal(out.float(), 1.0)), loss=lambda out: out.mean.square().mean()
    ),
    "returns an array": lambda: dataclasses.replace(_put(lambda out: out.detach().float().numpy()), loss=None),
    "returns NaN": put(lambda out: out / 0 * 0),
    "returns its input": put(lambda out: (out, out)),
    "returns views of one": put(lambda out: (out[:, :3], out[:, 2:])),
    "returns a set of a list": put(lambda out: [out, {1, 2}]),
    "given a list": lambda: Form(*two(lambda self, xs: self.inner(xs[0]) + self.inner(xs[1])), ([rows(), rows()],), squares),
    "given a dict": lambda: Form(*two(lambda self, batch: self.inner(batch["x"])), ({"x": rows()},), squares),
    "given by name": lambda: Form(*two(lambda self, x, scale=1.0: self.inner(x) * scale), {"x": rows(), "scale": 2.0}, squares),
    "given a packed sequence": lambda: packed(),
    "given nothing": lambda: Form(*two(lambda self: self.inner(torch.ones(2, W))), (), squares),
    "given None": lambda: Form(*two(lambda self, x, mask: self.inner(x)), (rows(), None), squares),
    "given whole numbers": lambda: Form(
        *two(lambda self, x: self.inner(self.words(x)), words=lambda: nn.Embedding(9, W)), torch.randint(9, (ROWS, 3)), squares
    ),
    "sparse gradients": lambda: Form(
        *two(lambda self, x: self.inner(self.words(x)), words=lambda: nn.Embedding(9, W, sparse=True)), torch.randint(9, (ROWS, 3)), squares
    ),
    "bags of words": lambda: Form(
        *two(lambda self, x: self.inner(self.words(x)), words=lambda: nn.EmbeddingBag(9, W)), torch.randint(9, (ROWS, 3)), squares
    ),
    "given a sparse tensor": lambda: Form(*two(lambda self, x: self.inner(x.to_dense())), rows().relu().to_sparse(), squares),
    "given what requires a gradient": lambda: Form(*two(lambda self, x: self.inner(x)), rows().requires_grad_(), squares),
    "given an expanded tensor": lambda: Form(*two(lambda self, x: self.inner(x)), torch.randn(1, W).expand(ROWS, W), squares),
    "given no rows": lambda: Form(*two(lambda self, x: self.inner(x)), torch.randn(0, W), squares),
    "changes its input": lambda: Form(*two(lambda self, x: self.inner(x.mul_(2))), rows(), squares),
    "a function of its own": lambda: Form(*two(lambda self, x: Doubled.apply(self.inner(x))), rows(), squares),
    "draws": lambda: Form(*two(lambda self, x: F.dropout(self.inner(x), 0.3) + torch.rand(W)), rows(), squares),
    "keeps its last output": lambda: Form(*two(keeping), rows(), squares),
    "counts its calls": lambda: Form(*two(counting, count=lambda: nn.Buffer(torch.zeros((), dtype=torch.long))), rows(), squares),
    "a recurrent layer": lambda: Form(
        *two(lambda self, x: self.line(x), line=lambda: nn.LSTM(W, W, batch_first=True)), torch.randn(ROWS, 3, W), lambda out: squares(out[0])
    ),
    "torch's encoder": lambda: Form(
        *two(lambda self, x: self.line(x), line=lambda: nn.TransformerEncoderLayer(W, 2, 16, batch_first=True, dropout=0.0)),
        torch.randn(ROWS, 3, W),
        squares,
    ),
    "torch's encoder in use": lambda: Form(
        *two(lambda self, x: self.line(x), line=lambda: nn.TransformerEncoderLayer(W, 2, 16, batch_first=True).eval()),
        torch.randn(ROWS, 3, W),
        squares,
    ),
}


def keeping(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.last = self.inner(x)
    return self.last  # type: ignore[no-any-return]


def counting(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.count += 1
    return self.inner(x) * self.count  # type: ignore[no-any-return]


def packed() -> Form:
    given = rnn.pack_padded_sequence(torch.randn(5, 3, W), torch.tensor([5, 4, 2]))
    return Form(*two(lambda self, x: self.line(x), line=lambda: nn.GRU(W, W)), given, lambda out: squares(out[0].data))
