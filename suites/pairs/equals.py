"""Pairs that are the same function on paper, each computed in two ways: model, other, inputs and what else `compare` is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from decoder import decoder, language_loss, tokens
from torch import nn

Pair = tuple[Any, Any, Any, dict[str, Any]]
PAIRS: dict[str, Callable[[], Pair]] = {}
MEAN: dict[str, Any] = {"loss": lambda out: out.float().square().mean()}


def pair(made: Callable[[], Pair]) -> Callable[[], Pair]:
    PAIRS[made.__name__] = made
    return made


def of_decoder(**ways: Any) -> Pair:
    given = tokens()
    return decoder(), decoder(**ways), given, {"loss": language_loss(given), "optimizer": lambda held: torch.optim.AdamW(held, lr=1e-3)}


DECODERS = {
    "written_attention": {"attention": "written"},
    "einsum_attention": {"attention": "einsum"},
    "rope_of_joined_tables": {"rope": "joined"},
    "norm_by_its_norm": {"form": "norm"},
    "fused_weights": {"fused": True, "joined": True},
    "written_silu": {"act": "written"},
    "embedding_as_product": {"embedded": "product"},
    "all_of_it": {"attention": "einsum", "rope": "joined", "form": "norm", "fused": True, "joined": True, "act": "written"},
}
for name, ways in DECODERS.items():
    PAIRS[name] = lambda ways=ways: of_decoder(**ways)


class Turned(nn.Module):
    """A linear layer that stores its weight as GPT-2's does, (in, out)."""

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        self.kernel, self.offset = nn.Parameter(source.weight.detach().t().clone()), nn.Parameter(source.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.kernel + self.offset


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor


class Renamed(nn.Module):
    def __init__(self, source: nn.Sequential) -> None:
        super().__init__()
        self.c_fc, self.ln, self.c_proj = Turned(source[0]), nn.LayerNorm(32), Turned(source[3])

    def forward(self, x: torch.Tensor) -> Output:
        hidden = self.ln(self.c_fc(x))
        return Output(self.c_proj(F.gelu(hidden)), hidden)


class Original(nn.Sequential):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self[1](self[0](x))
        return self[3](self[2](hidden)), hidden


@pair
def renamed_and_turned() -> Pair:
    model = Original(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8))
    return model, Renamed(model), torch.randn(6, 16, requires_grad=True), {"loss": lambda out: getattr(out, "logits", None).sum()
            if isinstance(out, Output) else out[0].sum()}  # fmt: skip


class ByHand(nn.Module):
    """An LSTM, gate by gate."""

    def __init__(self, source: nn.LSTM) -> None:
        super().__init__()
        self.weight_ih_l0, self.weight_hh_l0 = (nn.Parameter(getattr(source, f"weight_{kind}_l0").detach().clone()) for kind in ("ih", "hh"))
        self.bias_ih_l0, self.bias_hh_l0 = (nn.Parameter(getattr(source, f"bias_{kind}_l0").detach().clone()) for kind in ("ih", "hh"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = x.new_zeros(len(x), self.weight_hh_l0.shape[1])
        given = []
        for step in x.unbind(1):
            i, f, g, o = (F.linear(step, self.weight_ih_l0, self.bias_ih_l0) + F.linear(h, self.weight_hh_l0, self.bias_hh_l0)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            given.append(h)
        return torch.stack(given, 1)


class First(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[0]  # type: ignore[no-any-return]


@pair
def recurrence_by_hand() -> Pair:
    lstm = nn.LSTM(8, 16, batch_first=True)
    return First(lstm), ByHand(lstm), torch.randn(3, 10, 8), MEAN


@pair
def convolution_unfolded() -> Pair:
    convolution = nn.Conv2d(3, 8, 3, padding=1)

    def unfolded(x: torch.Tensor) -> torch.Tensor:
        columns = F.unfold(x, 3, padding=1)
        return (convolution.weight.flatten(1) @ columns + convolution.bias[:, None]).view(len(x), 8, *x.shape[2:])

    return convolution, unfolded, torch.randn(2, 3, 10, 10), MEAN


@pair
def bias_before_a_norm() -> Pair:
    """The bias' gradient is zero on paper: what is computed of it is rounding alone, and otherwise on each side."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    inner = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    inner.load_state_dict(model.state_dict())

    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            norm, y = self.inner[1], self.inner[0](x)
            centred = y.float() - y.float().mean((0, 2, 3), keepdim=True)
            y = centred * (centred.square().mean((0, 2, 3), keepdim=True) + norm.eps).rsqrt()
            y = y.type_as(x) * norm.weight[:, None, None] + norm.bias[:, None, None]
            return self.inner[4](y.relu().flatten(1))  # type: ignore[no-any-return]

    return model, Written(), torch.randn(4, 3, 8, 8), {**MEAN, "match": {"inner": ""}}


@pair
def rows_one_by_one() -> Pair:
    model = decoder()
    given = tokens(batch=4)
    return model, lambda x: torch.cat([model(row) for row in x.split(1)]), given, {"loss": language_loss(given)}


@pair
def losses_added_up() -> Pair:
    """One batch, and the mean of its microbatches' losses."""
    net = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 5))
    x, y = torch.randn(8, 12), torch.randint(0, 5, (8,))
    return (
        lambda x, y: F.cross_entropy(net(x), y),
        lambda x, y: torch.stack([F.cross_entropy(net(a), b) for a, b in zip(x.split(2), y.split(2), strict=True)]).mean(),
        (x, y), {"loss": lambda out: out},
    )  # fmt: skip


@pair
def experts_chosen_or_masked() -> Pair:
    """A mixture of experts: those chosen alone, and all of them with zeros for the others."""
    router, experts = nn.Linear(16, 4), nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    class Chosen(nn.Module):
        def __init__(self, dense: bool) -> None:
            super().__init__()
            self.router, self.experts, self.dense = router, experts, dense

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            values, places = self.router(x).softmax(-1).topk(2, -1)
            if self.dense:
                gates = torch.zeros(len(x), 4, dtype=values.dtype).scatter(1, places, values)
                return torch.stack([expert(x) * gates[:, number, None] for number, expert in enumerate(self.experts)]).sum(0)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                rows, which = (places == number).nonzero(as_tuple=True)
                out = out.index_add(0, rows, (expert(x[rows]) * values[rows, which, None]).to(out.dtype))
            return out

    return Chosen(False), Chosen(True), torch.randn(64, 16), MEAN


@pair
def more_exact_than_the_reference() -> Pair:
    """The candidate computes in float64 what the reference does in the format of its inputs."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Softplus(), nn.Linear(32, 4))

    def exact(x: torch.Tensor) -> torch.Tensor:
        first, last = model[0], model[2]
        hidden = F.softplus(F.linear(x.double(), first.weight.double(), first.bias.double()))
        return F.linear(hidden, last.weight.double(), last.bias.double()).to(x.dtype)

    return model, exact, torch.randn(8, 16), MEAN


@pair
def recomputed() -> Pair:
    from torch.utils.checkpoint import checkpoint

    model = decoder()
    given = tokens()

    def saving(x: torch.Tensor) -> torch.Tensor:
        hidden = model.embedding(x)
        for layer in model.layers:
            hidden = checkpoint(layer, hidden, use_reentrant=False)
        return model.head(model.norm(hidden))  # type: ignore[no-any-return]

    return model, saving, given, {"loss": language_loss(given)}


@pair
def dropout_as_module() -> Pair:
    net = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.3), nn.Linear(64, 4))
    return net, lambda x: net[2](F.dropout(net[0](x), 0.3, True)), torch.randn(8, 16), MEAN


@pair
def pooled_by_windows() -> Pair:
    return nn.MaxPool2d(2), lambda x: x.unfold(2, 2, 2).unfold(3, 2, 2).amax((-2, -1)), torch.randn(2, 3, 8, 8), {}


@pair
def cached_decoding() -> Pair:
    """One token at a time, with the keys and values of those before it kept."""
    model = decoder()

    def cached(x: torch.Tensor) -> torch.Tensor:
        from decoder import HEADS, WIDTH, rotated

        kept: list[list[torch.Tensor]] = [[] for _ in model.layers]
        given = []
        for place in range(x.shape[1]):
            hidden = model.embedding(x[:, place : place + 1])
            for number, layer in enumerate(model.layers):
                q, k, v = layer.attention.projected(layer.n1(hidden))
                q, k = rotated(q, place), rotated(k, place)
                kept[number].append(torch.stack([k, v]))
                keys, values = torch.cat(kept[number], -2)
                mixed = F.scaled_dot_product_attention(q, keys, values, scale=(WIDTH // HEADS) ** -0.5)
                hidden = hidden + layer.attention.o(mixed.transpose(1, 2).reshape(hidden.shape))
                hidden = hidden + layer.feeding(layer.n2(hidden))
            given.append(model.head(model.norm(hidden)))
        return torch.cat(given, 1)

    given = tokens()
    return model, cached, given, {"loss": language_loss(given)}


@pair
def variance_in_two_ways() -> Pair:
    """Two passes, and Welford's one: neither cancels."""

    def two(x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(-1, keepdim=True)).square().mean(-1)

    return two, lambda x: torch.var_mean(x, -1, correction=0)[0], torch.randn(32, 200) + 5.0, {}
