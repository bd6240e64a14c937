"""Steps of diffusion samplers, draws from a model's probabilities, and the mask of a window."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def dpm_tensors(sigmas: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What DPM-Solver++ needs of each sigma: the scale of the data, the deviation of the noise, the log of their ratio."""
    scale = 1 / torch.sqrt(sigmas**2 + 1)  # culprit: dpm-ratios
    deviation = sigmas * scale
    return scale, deviation, torch.log(scale) - torch.log(deviation)  # culprit: dpm-ratios


def predicted_noise(x: torch.Tensor, scale: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
    """What the best network says for data of mean 0.5 and deviation 0.4."""
    return deviation * (x - 0.5 * scale) / (0.16 * scale**2 + deviation**2)


def dpm_sample(dtype: torch.dtype, steps: int = 60) -> torch.Tensor:
    """First-order DPM-Solver++ whose schedule has the dtype of the latents: the step in the log of the ratio is a difference of rounded logs."""
    ramp = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    sigmas = (14.6 ** (1 / 7) + (1 - ramp) * (0.03 ** (1 / 7) - 14.6 ** (1 / 7))) ** 7
    scale, deviation, ratio = dpm_tensors(sigmas.to(dtype))  # culprit: dpm-ratios
    x = (normal(8, 32) * sigmas[0]).to(LOW).to(dtype) * scale[0]
    for now in range(steps):
        data = (x - deviation[now] * predicted_noise(x, scale[now], deviation[now])) / scale[now]
        by = ratio[now] - ratio[now + 1]  # culprit: dpm-ratios
        x = deviation[now + 1] / deviation[now] * x + (1 - torch.exp(by)) * scale[now + 1] * data  # culprit: dpm-ratios
    return x


def step_likelihood(dtype: torch.dtype) -> torch.Tensor:
    """Log-likelihood of a step of a flow's sampler, for a policy's ratio: its variance is the difference of two sigmas in bfloat16."""
    ramp = torch.linspace(1.0, 0.0, 29)
    sigmas = (3.0 * ramp / (1 + 2.0 * ramp)).to(dtype)  # culprit: step-likelihood
    sample, velocity, noise = (normal(4, 16, 16, seed=seed).to(LOW).to(dtype) for seed in range(3))
    likely = []
    for now in range(1, 10):
        sigma, step = sigmas[now], sigmas[now + 1] - sigmas[now]  # culprit: step-likelihood
        deviation = torch.sqrt(sigma / (1 - sigma)) * 0.7  # culprit: step-likelihood
        mean = sample * (1 + deviation**2 / (2 * sigma) * step) + velocity * (1 + deviation**2 * (1 - sigma) / (2 * sigma)) * step
        spread = deviation * torch.sqrt(-step)
        after = (mean + spread * noise).to(LOW).to(dtype)
        each = -((after - mean) ** 2) / (2 * spread**2) - torch.log(spread) - math.log(math.sqrt(2 * math.pi))  # culprit: step-likelihood
        likely.append(each.mean((1, 2)))
        sample = after
    return torch.stack(likely)


def flow_head(x: torch.Tensor, condition: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A network in bfloat16, whatever comes in."""
    return torch.tanh((x.to(LOW) + condition) @ weight)


def guided_flow(dtype: torch.dtype, steps: int = 10) -> torch.Tensor:
    """A guided flow whose latents are stored in bfloat16 between the steps, each a small part of them."""
    weight, condition = (0.3 * normal(32, 32, seed=1)).to(LOW), (0.2 * normal(8, 32, seed=2)).to(LOW)
    y = normal(8, 32).to(LOW).to(dtype)
    for _ in range(steps):
        told, untold = flow_head(y, condition, weight).to(dtype), flow_head(y, 0 * condition, weight).to(dtype)
        flow = told + (told - untold) * 2.0
        y = y + flow / steps  # culprit: guided-flow
    return y


SEED = 18
"""A seed that draws a token which cannot be; one in forty does."""


def allowed_draws(dtype: torch.dtype) -> torch.Tensor:
    """Draws where four of 50257 tokens are possible: exponentials of half precision reach zero, and zero over zero wins."""
    logits = torch.full((48, 50_257), float("-inf"))
    logits[:, :4] = normal(48, 4)
    p = torch.softmax(logits.half().float(), -1).to(dtype)
    drawn = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(SEED))  # culprit: impossible-token
    return (drawn < 4).float()


def windowed(dtype: torch.dtype) -> torch.Tensor:
    """Attention in windows of sixteen and the one before: positions in the dtype of the queries, compared to mask the future."""
    q, k, v = (normal(1024, 16, seed=seed).to(LOW) for seed in range(3))
    places = torch.arange(1024, dtype=dtype).reshape(64, 16)  # culprit: leaked-future
    q, k, v = (each.reshape(64, 16, 16) for each in (q, k, v))
    before = [torch.cat((each.roll(1, 0), each), 1) for each in (k, v, places)]
    scores = q @ before[0].transpose(1, 2) / 4
    scores = scores.masked_fill(places[:, :, None] < before[2][:, None, :], -1e4)
    return (torch.softmax(scores.float(), -1).to(LOW) @ before[1])[1:]


BUGS = (
    Bug("dpm-ratios", "finegrain-ai/refiners#449", ("amplified-rounding", "cancellation"), "aten.sub.Tensor", lambda: dpm_sample(LOW),
        lambda: dpm_sample(WIDE)),
    Bug("step-likelihood", "yifan123/flow_grpo#177", ("amplified-rounding", "cancellation"), "aten._to_copy.default", lambda: step_likelihood(LOW),
        lambda: step_likelihood(WIDE)),
    Bug("guided-flow", "vllm-project/vllm-omni#4341", ("absorption", "accumulated-drift"), "aten.add.Tensor", lambda: guided_flow(LOW),
        lambda: guided_flow(WIDE), harm=0.01,
        expected_miss="ten roundings add up to 2.4 unit roundoffs: as many as in a stream of residuals of ten layers, which the loop is as well"),
    Bug("impossible-token", "cloveranon/Clover-Edition#168", ("underflow", "nan"), "aten.multinomial.default", lambda: allowed_draws(HALF),
        lambda: allowed_draws(WIDE)),
    Bug("leaked-future", "pytorch/pytorch#81926", ("integer-rounding",), "aten.arange.default", lambda: windowed(LOW),
        lambda: windowed(torch.int64)),
)  # fmt: skip
