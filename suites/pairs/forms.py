"""Forms in which people hold a model, each to be compared with another form of the same network. `FORMS` gives for each a function that makes the
model, the reference (None: a copy), the inputs and the loss.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import fusion, parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

W, ROWS = 8, 4


@dataclasses.dataclass
class Form:
    """`model` is the form, and `plain` the network in its usual form. The loss takes what `model` returns."""

    model: Any
    plain: Any
    inputs: Any
    loss: Callable[[Any], torch.Tensor] | None


FORMS: dict[str, Callable[[], Form]] = {}


def floats(value: Any) -> list[torch.Tensor]:
    """All floating tensors in a container, of any depth."""
    if isinstance(value, torch.Tensor):
        return [value.to_dense() if value.layout is not torch.strided else value] if value.is_floating_point() or value.is_complex() else []
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        value = list(value.values())
    return [each for item in value for each in floats(item)] if isinstance(value, (list, tuple)) else []


def squares(out: Any) -> torch.Tensor:
    """The mean square of all numbers of an output."""
    return torch.stack([each.abs().float().square().mean() for each in floats(out)]).sum()


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(W, W), nn.LayerNorm(W), nn.GELU(), nn.Linear(W, W))


def filters() -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(3, W, 3, padding=1), nn.GroupNorm(2, W), nn.SiLU(), nn.ConvTranspose1d(W, 3, 3, padding=1))


def rows() -> torch.Tensor:
    return torch.randn(ROWS, W)


def signals() -> torch.Tensor:
    return torch.randn(ROWS, 3, W)


def of(make: Callable[[Any, torch.Tensor], Any], part: Callable[[], Any] = net, given: Callable[[], torch.Tensor] = rows) -> Form:
    """A form that a function makes of a network, beside the network as it was."""
    plain, x = part(), given()
    kept = copy.deepcopy(plain)
    return Form(make(plain, x), kept, x, squares)


def both(make: Callable[[Any, torch.Tensor], Any], part: Callable[[], Any] = net, given: Callable[[], torch.Tensor] = rows) -> Form:
    """A form that a function makes of a network, beside the same of a copy."""
    plain, x = part(), given()
    kept = copy.deepcopy(plain)
    return Form(make(plain, x), make(kept, x), x, squares)


class Applied(nn.Module):
    """A network with a piece of code after it."""

    def __init__(self, code: Callable[..., Any], inner: nn.Module | None = None, **parts: Any) -> None:
        super().__init__()
        self.inner, self.code = net() if inner is None else inner, code
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.code(self, *args, **kwargs)


# what torch's tools make
FORMS |= {
    "itself": lambda: of(lambda net, x: net),
    "filters": lambda: of(lambda net, x: net, filters, signals),
    "traced": lambda: of(lambda net, x: torch.jit.trace(net, (x,))),
    "traced filters": lambda: of(lambda net, x: torch.jit.trace(net, (x,)), filters, signals),
    "scripted": lambda: of(lambda net, x: torch.jit.script(net)),
    "scripted filters": lambda: of(lambda net, x: torch.jit.script(net), filters, signals),
    "scripted and frozen": lambda: of(lambda net, x: torch.jit.freeze(torch.jit.script(net.eval()))),
    "frozen for inference": lambda: of(lambda net, x: torch.jit.optimize_for_inference(torch.jit.script(net.eval()))),
    "a scripted part": lambda: of(lambda net, x: nn.Sequential(torch.jit.script(net[:2]), *net[2:])),
    "a scripted function": lambda: both(lambda net, x: Applied(lambda self, x: scripted_tanh(self.inner(x)), net)),
    "a traced function": lambda: both(lambda net, x: Applied(traced_tanh(x), net)),
    "traced by symbols": lambda: of(lambda net, x: torch.fx.symbolic_trace(net)),
    "exported": lambda: of(lambda net, x: torch.export.export(net, (x,))),
    "exported filters": lambda: of(lambda net, x: torch.export.export(net, (x,)), filters, signals),
    "an exported module": lambda: of(lambda net, x: torch.export.export(net, (x,)).module()),
    "exported in parts": lambda: of(lambda net, x: torch.export.export(net, (x,)).run_decompositions()),
    "compiled": lambda: of(lambda net, x: torch.compile(net, backend="aot_eager")),
    "compiled in place": lambda: of(lambda net, x: [net.compile(backend="aot_eager"), net][1]),
    "a compiled part": lambda: of(lambda net, x: nn.Sequential(torch.compile(net[:2], backend="aot_eager"), *net[2:])),
    "a compiled function": lambda: of(lambda net, x: torch.compile(lambda x: net(x), backend="aot_eager")),
    "called on other weights": lambda: of(lambda net, x: lambda x: torch.func.functional_call(net, dict(net.named_parameters()), (x,))),
    "row by row": lambda: of(lambda net, x: torch.func.vmap(net)),
    "row by row within": lambda: of(lambda net, x: Applied(lambda self, x: torch.func.vmap(self.inner)(x), net)),
    "an ensemble": lambda: ensemble(),
    "per-example gradients": lambda: both(lambda net, x: Applied(each_slope, net)),
    "a jacobian": lambda: both(lambda net, x: Applied(lambda self, x: torch.func.jacrev(lambda r: self.inner(r))(x), net)),
    "a directional derivative": lambda: both(lambda net, x: Applied(lambda self, x: torch.func.jvp(self.inner, (x,), (x,)), net)),
    "a gradient within": lambda: both(lambda net, x: Applied(slopes, net)),
    "recomputed": lambda: of(lambda net, x: Applied(lambda self, x: checkpoint(self.inner, x, use_reentrant=False), net)),
    "recomputed by re-entry": lambda: of(lambda net, x: Applied(lambda self, x: checkpoint(self.inner, x, use_reentrant=True), net)),
    "recomputed in parts": lambda: of(lambda net, x: Applied(lambda self, x: checkpoint_sequential(self.inner, 2, x, use_reentrant=False), net)),
    "in parallel": lambda: of(lambda net, x: nn.DataParallel(net)),
    "averaged": lambda: of(lambda net, x: torch.optim.swa_utils.AveragedModel(net)),
    "a bound method": lambda: of(lambda net, x: net.forward),
    "a partial": lambda: of(lambda net, x: functools.partial(lambda net, x: net(x), net)),
    "a function": lambda: of(lambda net, x: lambda x: net(x)),
    "no parameters": lambda: Form(torch.tanh, lambda x: torch.tanh(x), rows(), squares),
    "nothing done": lambda: Form(nn.Identity(), lambda x: x, rows(), squares),
    "without gradients": lambda: of(lambda net, x: net.requires_grad_(False)),
    "some weights frozen": lambda: of(lambda net, x: [net[0].requires_grad_(False), net][1]),
    "in no_grad": lambda: of(lambda net, x: torch.no_grad()(net.forward)),
    "in inference mode": lambda: of(lambda net, x: torch.inference_mode()(net.forward)),
}  # fmt: skip


def traced_tanh(x: torch.Tensor) -> Callable[..., Any]:
    traced = torch.jit.trace(torch.tanh, (x,))
    return lambda self, x: traced(self.inner(x))


@torch.jit.script
def scripted_tanh(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2.0 + 1.0


def each_slope(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.func.vmap(torch.func.grad(lambda row: self.inner(row).sum()))(x)  # type: ignore[no-any-return]


def slopes(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.inner(x).sum(), x, create_graph=True)[0]


def ensemble() -> Form:
    nets = [net() for _ in range(3)]
    weights, _ = torch.func.stack_module_state(nets)  # type: ignore[arg-type]
    base = copy.deepcopy(nets[0])

    class Stacked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = nn.ParameterDict({name.replace(".", "_"): nn.Parameter(value.detach()) for name, value in weights.items()})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            held = {name: self.held[name.replace(".", "_")] for name in weights}
            return torch.func.vmap(lambda one: torch.func.functional_call(base, one, (x,)))(held)

    return Form(Stacked(), Stacked(), rows(), squares)


# what weights are held in
def reparametrised(way: Callable[[nn.Module], Any]) -> Callable[[], Form]:
    def held(net: nn.Module, x: torch.Tensor) -> nn.Module:
        torch.manual_seed(1)  # a spectral norm begins with random vectors
        way(net)
        return net

    return lambda: both(held)


FORMS |= {
    "norms of weights": reparametrised(lambda net: parametrizations.weight_norm(net[0])),  # type: ignore[index]
    "norms of weights, the old way": reparametrised(lambda net: torch.nn.utils.weight_norm(net[0])),  # type: ignore[index]
    "orthogonal": reparametrised(lambda net: parametrizations.orthogonal(net[0])),  # type: ignore[index]
    "spectral": reparametrised(lambda net: parametrizations.spectral_norm(net[0])),  # type: ignore[index]
    "spectral, the old way": reparametrised(lambda net: torch.nn.utils.spectral_norm(net[0])),  # type: ignore[index]
    "symmetric": reparametrised(lambda net: parametrize.register_parametrization(net[0], "weight", Symmetric())),  # type: ignore[index]
    "pruned": reparametrised(lambda net: prune.l1_unstructured(net[0], "weight", 0.3)),  # type: ignore[index]
    "a forward hook": reparametrised(lambda net: net[1].register_forward_hook(lambda module, args, out: out * 1.0)),  # type: ignore[index]
    "a hook before": reparametrised(lambda net: net[1].register_forward_pre_hook(lambda module, args: (args[0] * 1.0,))),  # type: ignore[index]
    "a hook of gradients": reparametrised(lambda net: net[1].register_full_backward_hook(lambda module, given, made: None)),  # type: ignore[index]
    "a hook of a weight": reparametrised(lambda net: net[0].weight.register_hook(lambda gradient: gradient * 1.0)),  # type: ignore[index]
    "a hook after a gradient": reparametrised(lambda net: net[0].weight.register_post_accumulate_grad_hook(lambda weight: None)),  # type: ignore[index]
    "tied": reparametrised(lambda net: setattr(net[3], "weight", net[0].weight)),  # type: ignore[index]
    "a module twice": lambda: both(lambda net, x: nn.Sequential(net, net)),
    "lazy": lambda: of(lambda net, x: net, lambda: nn.Sequential(nn.LazyLinear(W), nn.LayerNorm(W), nn.LazyLinear(W))),
    "lazy, and called": lambda: both(lambda net, x: [net(x), net][1], lambda: nn.Sequential(nn.LazyLinear(W), nn.LayerNorm(W), nn.LazyLinear(W))),
    "on no device": lambda: of(lambda net, x: net.to("meta")),
    "in float64": lambda: both(lambda net, x: net.double(), net, lambda: rows().double()),
    "in bfloat16": lambda: both(lambda net, x: net.bfloat16(), net, lambda: rows().bfloat16()),
    "of eight bits when called": lambda: both(lambda net, x: torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, torch.qint8)),
    "of eight bits": lambda: both(quantised),
    "to be trained for eight bits": lambda: both(aware),
    "folded": lambda: of(lambda net, x: fusion.fuse_conv_bn_eval(net[0], net[1]),
                         lambda: nn.Sequential(nn.Conv1d(3, 3, 3, padding=1), nn.BatchNorm1d(3)).eval(), signals),
    "weights in a vector": lambda: Form(Flat(), Flat(), rows(), squares),
    "complex weights": lambda: Form(Complex(), Complex(), rows(), squares),
    "weights of whole numbers": lambda: Form(Whole(), Whole(), rows(), squares),
    "a sparse weight": lambda: Form(Sparse(), Sparse(), rows(), squares),
}  # fmt: skip


class Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).T


def quantised(net: nn.Module, x: torch.Tensor) -> nn.Module:
    """Quantised after training, by torch's own tool."""
    quantization = torch.ao.quantization
    torch.manual_seed(1)
    wrapped = nn.Sequential(quantization.QuantStub(), nn.Linear(W, W), nn.ReLU(), quantization.DeQuantStub()).eval()
    wrapped.qconfig = quantization.get_default_qconfig("x86")  # type: ignore[assignment]
    quantization.prepare(wrapped, inplace=True)
    wrapped(x)
    return quantization.convert(wrapped)  # type: ignore[no-any-return]


def aware(net: nn.Module, x: torch.Tensor) -> nn.Module:
    quantization = torch.ao.quantization
    torch.manual_seed(1)
    wrapped = nn.Sequential(quantization.QuantStub(), nn.Linear(W, W), nn.ReLU(), quantization.DeQuantStub()).train()
    wrapped.qconfig = quantization.get_default_qat_qconfig("x86")  # type: ignore[assignment]
    return quantization.prepare_qat(wrapped)  # type: ignore[no-any-return]


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.held = nn.Parameter(torch.randn(2 * W * W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.held.view(2, W, W)
        return (x @ first).relu() @ second


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.turn = nn.Parameter(torch.randn(W // 2 + 1, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(x.float()) * self.turn, n=W)


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.codes = nn.Parameter(torch.randint(-8, 8, (W, W), dtype=torch.int8), requires_grad=False)
        self.scale = nn.Parameter(torch.rand(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.codes.to(x.dtype) * self.scale.to(x.dtype))


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.line = nn.Linear(W, W)
        self.register_buffer("graph", (torch.rand(ROWS, ROWS) > 0.5).float().to_sparse())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(self.graph.float(), self.line(x).float())


def two(code: Callable[..., Any], **parts: Callable[[], Any]) -> tuple[nn.Module, nn.Module]:
    model = Applied(code, None, **{name: part() for name, part in parts.items()})
    return model, copy.deepcopy(model)
