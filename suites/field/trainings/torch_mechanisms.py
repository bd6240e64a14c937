"""Mechanisms of torch that a training may use beside its model: control flow, saved tensors, hooks, parametrizations, threads, compilers."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from training import Left, Low, data, looped, network, square, training

SGD = lambda given: torch.optim.SGD(given, lr=0.1)  # noqa: E731


class Around(nn.Module):
    """A network, called by a function of the module and its input."""

    def __init__(self, function: Any, net: nn.Module | None = None) -> None:
        super().__init__()
        self.net, self.function = net or network(), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)  # type: ignore[no-any-return]


def added(name: str, function: Any, net: Any = network) -> None:
    training("torch", name=name)(lambda low: looped(low, Around(function, net()), SGD))


class Pickled(nn.Module):
    """Keeps a pickled copy of itself at each call, as checkpoints within a forward pass do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        again = pickle.loads(pickle.dumps(self.net))
        return self.net(x) + again(x).detach()  # type: ignore[no-any-return]


def in_thread(own: Around, x: torch.Tensor) -> torch.Tensor:
    found: list[torch.Tensor] = []

    def called() -> None:
        found.append(own.net(x))

    thread = threading.Thread(target=called)
    thread.start()
    thread.join()
    return found[0].float()


def penalty(own: Around, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    out = own.net(x)
    (slope,) = torch.autograd.grad(out.float().sum(), x, create_graph=True)
    return out + slope.float().square().sum() * 0.01


def tripled(x: torch.Tensor, times: int) -> torch.Tensor:
    return torch.utils.checkpoint.checkpoint(nn.functional.gelu, x * times, use_reentrant=False)  # type: ignore[no-any-return]


class Custom(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return given * (1 - x.tanh().square())


def saved_on_cpu(own: Around, x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.save_on_cpu():
        return own.net(x)  # type: ignore[no-any-return]


def packed(own: Around, x: torch.Tensor) -> torch.Tensor:
    """Saves for the backward pass in bfloat16."""
    def small(each: torch.Tensor) -> Any:
        return each.dtype, each.bfloat16() if each.is_floating_point() else each

    with torch.autograd.graph.saved_tensors_hooks(small, lambda kept: kept[1].to(kept[0])):
        return own.net(x)  # type: ignore[no-any-return]


def looked_up(own: Around, x: torch.Tensor) -> torch.Tensor:
    return own.net(torch.while_loop(lambda i, each: i < 3, lambda i, each: (i + 1, each * 1.1), (torch.tensor(0), x))[1])  # type: ignore[no-any-return]


def weight_norm() -> nn.Module:
    net = network()
    nn.utils.parametrizations.weight_norm(net[0])
    nn.utils.parametrizations.spectral_norm(net[3])
    return net


def orthogonal() -> nn.Module:
    net = network()
    nn.utils.parametrizations.orthogonal(net[0])
    return net


def quantised() -> nn.Module:
    from torch.ao.quantization import FakeQuantize

    return nn.Sequential(FakeQuantize(), *network())


added("cond", lambda own, x: torch.cond(x.sum() > -1e9, lambda x: own.net(x), lambda x: own.net(x) * 2, (x,)))
added("cond of a tensor's own", lambda own, x: own.net(torch.cond(x.mean() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))))
added("while_loop", looked_up)
added("copied within", lambda own, x: own.net(x) + copy.deepcopy(own.net)(x).detach())
added("in a thread", in_thread)
added("gradient penalty", penalty)
added("checkpoint", lambda own, x: own.net[1:](tripled(own.net[0](x), 2)))
added("custom function", lambda own, x: own.net(Custom.apply(x).to(x.dtype)))
added("saved on a CPU", saved_on_cpu)
added("saved in bfloat16", packed)
added("weight norm, spectral norm", lambda own, x: own.net(x), weight_norm)
added("orthogonal", lambda own, x: own.net(x), orthogonal)
added("scripted", lambda own, x: own.net(x), lambda: torch.jit.script(network()))
added("compiled by aot", lambda own, x: own.net(x), lambda: torch.compile(network(), backend="aot_eager"))
added("batch norm, channels last", lambda own, x: own.net(x.view(-1, 2, 4, 4).contiguous(memory_format=torch.channels_last)).flatten(1),
      lambda: nn.Sequential(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 1)))  # fmt: skip
added("gru", lambda own, x: own.net(x.view(-1, 4, 8))[0][:, -1], lambda: nn.GRU(8, 4, 2, batch_first=True, bidirectional=True))


@training("torch")
def pickled_within(low: Low) -> Left:
    return looped(low, Pickled(), SGD)


@training("torch")
def exported(low: Low) -> Left:
    model = low.cast(network())
    program = torch.export.export(model, (low.cast(data()[0]),)).module()
    left = looped(Low(low.precision), program, SGD)
    return Left(None, {**left.more, **dict(program.named_parameters())}, left.measured, left.asked)


@training("torch")
def scaled_losses(low: Low) -> Left:
    """Two losses, two optimizers, one scaler; unscaled and clipped."""
    body, heads, (x, y) = low.cast(network()), nn.ModuleList([low.cast(nn.Linear(4, 4)) for _ in range(2)]), data()
    optimizers = torch.optim.SGD(body.parameters(), lr=0.1), torch.optim.AdamW(heads.parameters(), lr=1e-2)
    for _ in range(3):
        with low.autocast():
            out = body(low.cast(x))
            losses = [cross_entropy(head(out).float(), y) for head in heads]
        for optimizer in optimizers:
            optimizer.zero_grad()
        low.scaler.scale(losses[0]).backward(retain_graph=True)
        low.scaler.scale(0.5 * losses[1]).backward()
        for optimizer in optimizers:
            low.scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_([*body.parameters(), *heads.parameters()], 0.5)
        for optimizer in optimizers:
            low.scaler.step(optimizer)
        low.scaler.update()
    return Left(nn.ModuleList([body, heads]), {"loss": losses[0]}, (nn.Sequential(body, heads[0]), low.cast(x)), {"loss": square})


@training("torch", ("bf16-true",))
def master_weights_and_kahan(low: Low) -> Left:
    """Weights in bfloat16 with what each step lost kept beside them."""
    model, (x, y) = low.cast(network()), data()
    lost = {each: torch.zeros_like(each) for each in model.parameters()}
    for _ in range(4):
        loss = cross_entropy(model(low.cast(x)).float(), y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for each, rest in lost.items():
                step = -1e-3 * each.grad + rest  # type: ignore[operator]
                new = each + step
                rest.copy_(step - (new - each))
                each.copy_(new)
    return Left(model, {"loss": loss}, (model, low.cast(x)))


@training("torch")
def default_dtype(low: Low) -> Left:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if low.true else torch.float32)
    try:
        return looped(low, network(), SGD)
    finally:
        torch.set_default_dtype(before)
