"""The twenty-ninth frozen set of broken kernels, second part: losses, activations, steps, gradients. Of links to threads an excerpt was read."""

from __future__ import annotations

from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional
PROGRAM = "ScalingIntelligence/KernelBench"


def _classes(x: torch.Tensor, y: torch.Tensor) -> None:
    need(x.dim() == 2, y.shape == x.shape[:1], x.shape[1] > 0, bool(((y == -100) | ((y >= 0) & (y < x.shape[1]))).all()))


def _smooth(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    _classes(x, y)
    need(bool((y >= 0).any()))
    return F.cross_entropy(x, y, label_smoothing=0.1)


@case("smoothed cross entropy: rows that are left out count in its mean", "kernel-mask", "eladhoffer/utils.pytorch/issues/4", _smooth,
      lambda: (*drawn((6, 5))(), torch.tensor([1, -100, 4, 0, -100, 2])))  # fmt: skip
def rows_that_are_left_out_count(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    _classes(x, y)
    counts = y >= 0
    need(bool(counts.any()))
    logs = x.log_softmax(1)
    lost = -0.9 * logs.gather(1, y.clamp(min=0)[:, None])[:, 0] - 0.1 * logs.mean(1)
    return torch.where(counts, lost, 0).sum() / (len(y) if wrong else counts.sum())


@case("softplus by its formula: powers of large numbers", "kernel-rounding", "tracel-ai/burn/pull/5374", F.softplus, drawn((5, 8)))
def powers_of_large_numbers(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    return (x.exp() + 1).log() if wrong else torch.logaddexp(x, torch.zeros_like(x))


def _adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The first moments are kept from earlier steps. Weights decay through the gradient."""
    need(p.shape == g.shape == m.shape == v.shape, bool((v >= 0).all()))
    g = g + 0.1 * p
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 0.01 * m / (v.sqrt() + 1e-6), m, v


@case("step of adam: the weights decay beside the moments", "kernel-contract", "flagos-ai/FlagGems/issues/4988", _adam,
      lambda: (*drawn((4, 6), (4, 6), (4, 6))(), drawn((4, 6))()[0].flip(0).square()))  # fmt: skip
def decay_beside_the_moments(wrong: bool, p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    need(p.shape == g.shape == m.shape == v.shape, bool((v >= 0).all()))
    if not wrong:
        g = torch.add(g, p, alpha=0.1)
    m, v = torch.add(0.9 * m, g, alpha=0.1), torch.addcmul(0.99 * v, g, g, value=0.01)
    kept = p * (1 - 0.01 * 0.1) if wrong else p
    return torch.addcdiv(kept, m, v.sqrt() + 1e-6, value=-0.01), m, v


def _unit_step(g: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(g.shape == v.shape, bool((v >= 0).all()))
    return g / (v.sqrt() + 1e-3)


@case("gradient over a root of a mean of squares: the small number is added to the quotient", "kernel-contract",
      "kozistr/pytorch_optimizer/pull/121", _unit_step, lambda: (*drawn((4, 7))(), drawn((4, 7))()[0].flip(1).square() + 0.1))  # fmt: skip
def added_to_the_quotient(wrong: bool, g: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(g.shape == v.shape, bool((v >= 0).all()))
    return g / v.sqrt() + 1e-3 if wrong else g / torch.add(v.sqrt(), 1e-3)


def _divergence(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, len(x) > 0, x.shape[1] > 0)
    return F.kl_div(x.log_softmax(1), y.log_softmax(1), reduction="batchmean", log_target=True)


@case("divergence of rows: the mean is that of all elements", "kernel-contract", PROGRAM, _divergence, drawn((4, 6), (4, 6)))
def mean_of_all_elements(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, len(x) > 0, x.shape[1] > 0)
    one, two = x.log_softmax(1), y.log_softmax(1)
    lost = two.exp() * (two - one)
    return lost.mean() if wrong else lost.sum(1).mean()


def _focal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    _classes(x, y)
    need(bool((y >= 0).all()))
    log = x.log_softmax(1).gather(1, y[:, None])[:, 0]
    return -((1 - log.exp()) ** 2) * log


@case("focal loss: on the way back the weight is a constant", "kernel-gradient", PROGRAM, _focal, lambda: (*drawn((5, 4))(), whole(5, most=4)))
def weight_is_a_constant(wrong: bool) -> Any:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        _classes(x, y)
        need(bool((y >= 0).all()))
        logs = x.log_softmax(1)
        log = logs.gather(1, y[:, None])[:, 0]
        return -((1 - log.exp()) ** 2) * log, (logs, log, y)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        logs, log, y = saved
        share = log.exp()
        slope = -((1 - share) ** 2)
        if not wrong:
            slope = slope + 2 * (1 - share) * share * log
        inner = torch.scatter_add(-logs.exp(), 1, y[:, None], torch.ones_like(log)[:, None])
        return (g * slope)[:, None] * inner, None

    return function(forward, backward)


@case("product of a row so far: the way back divides by the numbers", "kernel-gradient", PROGRAM, lambda x: x.cumprod(1), drawn((4, 6)))
def way_back_divides(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2)
        return x.cumprod(1), (x,)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        (x,) = saved
        if wrong:
            return (g * x.cumprod(1)).flip(1).cumsum(1).flip(1) / x
        back = []
        for at in range(x.shape[1]):
            rest = torch.cat([torch.ones_like(x[:, :1]), x[:, at + 1 :]], 1).cumprod(1)
            back.append((g[:, at:] * rest).sum(1) * x[:, :at].prod(1))
        return torch.stack(back, 1) if back else x.clone()

    return function(forward, backward)


def _adapted(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == a.dim() == b.dim() == 2, x.shape[1] == len(a), a.shape[1] == len(b))
    return 0.5 * ((x @ a) @ b)


@case("product with two thin matrices, scaled: the way back of the first one is not scaled", "kernel-gradient", PROGRAM, _adapted,
      drawn((5, 6), (6, 2), (2, 4)))  # fmt: skip
def first_one_is_not_scaled(wrong: bool) -> Any:
    def forward(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        need(x.dim() == a.dim() == b.dim() == 2, x.shape[1] == len(a), a.shape[1] == len(b))
        return 0.5 * (x @ (a @ b)), (x, a, b)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, a, b = saved
        inner = g @ b.T
        return 0.5 * inner @ a.T, x.T @ inner * (1.0 if wrong else 0.5), 0.5 * (x @ a).T @ g

    return function(forward, backward)


@case("softmax: its way back is written over the incoming gradient", "kernel-mutation", "NVIDIA/apex/issues/1587", lambda x: x.softmax(1),
      drawn((4, 7)))  # fmt: skip
def written_over_the_incoming_gradient(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2)
        out = x.softmax(1)
        return out, (out,)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        (out,) = saved
        along = (g * out).sum(1, keepdim=True)
        if wrong and g.is_contiguous():
            return g.sub_(along).mul_(out)
        return (g - along) * out

    return function(forward, backward)


def _gated(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


@case("gelu, compiled: by its tanh", "kernel-contract", PROGRAM, _gated, drawn((5, 9)))
def gelu_compiled(wrong: bool) -> Any:
    return torch.compile(lambda x: F.gelu(x, approximate="tanh" if wrong else "none"), backend="aot_eager", dynamic=True)


def _retrieved(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Each row belongs to the row of the same place."""
    need(x.dim() == 2, x.shape == y.shape, len(x) > 0)
    return F.cross_entropy(x @ y.T / 0.2, torch.arange(len(x)), reduction="none")


@case("contrast of pairs: in float16 the scores are divided after the powers' sum", "kernel-rounding", PROGRAM, _retrieved,
      drawn((5, 8), (5, 8), dtype=torch.float16))  # fmt: skip
def divided_after(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, len(x) > 0)
    scores = x.float() @ y.float().T / 0.2
    sums = scores.exp().to(x.dtype).sum(1).float().log() if wrong else scores.logsumexp(1)
    return (sums - scores.diagonal()).to(x.dtype)
