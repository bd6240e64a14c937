"""Calibrations: middles of activations, losses of a log, what a layer sees, memories that should fade, and paths of a transducer."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


class Centring:
    """Takes the mean off activations, which it learns from batch after batch."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        self.total, self.rows = torch.zeros(width, dtype=dtype), 0

    def learn(self, batch: torch.Tensor) -> None:
        for row in batch.to(self.total.dtype):
            self.total = self.total + row  # culprit: middle-of-activations
        self.rows += len(batch)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return wider(x) - wider(self.total) / self.rows


def centred(dtype: torch.dtype) -> torch.Tensor:
    """Activations about a half: their sum stands nearly still in bfloat16. Off by 6 %."""
    activations = (0.9 + 0.2 * normal(180, 6)).to(LOW)
    centring = Centring(6, dtype)
    for batch in activations.split(60):
        centring.learn(batch)
    return centring(activations[:40])


class Log:
    """The mean loss of an epoch, as it is printed."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.sum, self.steps = torch.zeros((), dtype=dtype), 0

    def note(self, loss: torch.Tensor) -> None:
        self.sum += loss.to(self.sum.dtype)  # culprit: losses-of-an-epoch
        self.steps += 1

    def mean(self) -> torch.Tensor:
        return wider(self.sum) / self.steps


def logged(dtype: torch.dtype) -> torch.Tensor:
    """Losses of two epochs of 200 steps. Off by 8 %."""
    printed = []
    for epoch in range(2):
        log = Log(dtype)
        for loss in (2.3 - 0.7 * epoch + 0.1 * normal(200, seed=epoch)).to(LOW):
            log.note(loss)
        printed.append(log.mean())
    return torch.stack(printed)


class Hessian:
    """Second moments of what a layer sees, by which its weights are rounded."""

    def __init__(self, columns: int, dtype: torch.dtype) -> None:
        self.matrix, self.samples = torch.zeros(columns, columns, dtype=dtype), 0

    def add(self, inputs: torch.Tensor) -> None:
        added = len(inputs)
        self.matrix *= self.samples / (self.samples + added)  # culprit: inputs-of-a-layer
        self.samples += added
        inputs = inputs.to(self.matrix.dtype) * (2 / self.samples) ** 0.5
        self.matrix += inputs.T @ inputs  # culprit: inputs-of-a-layer

    def compensation(self, damping: float = 0.002) -> torch.Tensor:
        """How a rounded column is made good by those after it."""
        matrix = wider(self.matrix)
        matrix = matrix + damping * matrix.diagonal().mean() * torch.eye(len(matrix))
        inverse = torch.linalg.inv(matrix)
        return inverse / inverse.diagonal()[:, None]


def compensated(dtype: torch.dtype) -> torch.Tensor:
    """Of 60 batches of inputs, whose eight columns have much in common. Off by 300 %."""
    hessian = Hessian(8, dtype)
    common = normal(60, 16, 1)
    for batch in common + 0.15 * normal(60, 16, 8, seed=1):
        hessian.add(batch)
    return hessian.compensation()


class DeltaMemory:
    """A memory of keys and values, each channel of which fades at its own pace."""

    def __init__(self, decay: torch.Tensor, gates: torch.dtype) -> None:
        self.decay = decay.to(gates)  # culprit: memory-that-should-fade
        self.state = torch.zeros(len(decay), 4, dtype=wider(self.decay).dtype)

    def step(self, key: torch.Tensor, value: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        self.state = self.state * self.decay[:, None] + key[:, None] * value  # culprit: memory-that-should-fade
        return query @ self.state


def remembered(gates: torch.dtype) -> torch.Tensor:
    """The last answers after 120 tokens of a memory that forgets an eighth of a percent a token, and in bfloat16 nothing. Off by 9 %."""
    rate = 0.0012 + 0.0006 * uniform(6)
    memory = DeltaMemory(torch.exp(-rate), gates)
    key, value, query = 1 + 0.2 * normal(120, 6, seed=1), 1 + 0.2 * normal(120, 4, seed=2), uniform(120, 6, seed=3)
    answers = [memory.step(*(each.to(memory.state.dtype) for each in token)) for token in zip(key, value, query, strict=True)]
    return torch.stack(answers[-8:])


def path_scores(emit: torch.Tensor, blank: torch.Tensor) -> torch.Tensor:
    """Of each number of symbols, the logarithm of the chance that they were said by the last frame."""
    frames, symbols = emit.shape
    alpha = torch.full((symbols + 1,), -60.0, dtype=emit.dtype)
    alpha[0] = 0
    for frame in range(frames):
        stayed = alpha + blank[frame]  # culprit: paths-of-a-transducer
        alpha = torch.cat([stayed[:1], torch.logaddexp(stayed[1:], alpha[:-1] + emit[frame])])  # culprit: paths-of-a-transducer
    return alpha


def transduced(dtype: torch.dtype) -> torch.Tensor:
    """Which length is how likely after 64 frames. Off by 6 %."""
    scores = torch.log_softmax(normal(64, 2, 5), 1) - 1.5
    emit, blank = scores[:, 0].to(dtype), scores[:, 1, 0].to(dtype)
    return wider(path_scores(emit, blank)).softmax(-1)


BUGS = (
    Bug("middle-of-activations", "jax-ml/ml_dtypes#63", ("absorption", "accumulated-drift"), "aten.add.Tensor",
        lambda: centred(LOW), lambda: centred(SINGLE)),
    Bug("losses-of-an-epoch", "pytorch/xla#2425", ("absorption", "accumulated-drift"), "aten.add_.Tensor",
        lambda: logged(LOW), lambda: logged(SINGLE)),
    Bug("inputs-of-a-layer", "vllm-project/llm-compressor#847", ("amplified-rounding", "absorption", "accumulated-drift"), "aten.add_.Tensor",
        lambda: compensated(LOW), lambda: compensated(SINGLE)),
    Bug("memory-that-should-fade", "osaurus-ai/vmlx-swift#433", ("amplified-rounding", "accumulated-drift", "vanished-constant"),
        "aten._to_copy.default", lambda: remembered(LOW), lambda: remembered(SINGLE)),
    Bug("paths-of-a-transducer", "k2-fsa/icefall#283", ("accumulated-drift", "absorption", "amplified-rounding"), "aten.add.Tensor",
        lambda: transduced(LOW), lambda: transduced(SINGLE)),
)  # fmt: skip
