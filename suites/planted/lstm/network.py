"""A language model with an LSTM of its own, trained by truncated backpropagation: its state goes on from one stretch of text to the next."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, LENGTH, STRETCH, ROWS = 256, 32, 240, 60, 2
STEADY = 7.0  # a forget gate that opens to sigmoid(7) keeps what it has for a thousand tokens
State = tuple[Tensor, Tensor]


def cell(gates: Tensor, state: Tensor) -> State:
    """One step: the new hidden state, and the new cell state, which is kept in float32."""
    keep, write, show, new = gates.chunk(4, dim=-1)
    state = keep.float().sigmoid() * state + (write.sigmoid() * new.tanh()).float()
    return (show.float().sigmoid() * state.tanh()).to(gates.dtype), state


def perplexity(likelihoods: Tensor, logits: Tensor) -> Tensor:
    """Of each row's text so far, token by token, as it is shown while training."""
    total, found = torch.zeros(len(likelihoods)), []
    for number, each in enumerate(likelihoods.detach().unbind(1), 1):
        total += each
        found.append((total / number).float().exp())
    return torch.stack(found, dim=1)


def unlikelihood(logits: Tensor, avoided: Tensor) -> Tensor:
    """-log(1 - p) of a token that should not come next: the one before."""
    probabilities = F.softmax(logits.float(), dim=-1)
    return -torch.log1p(-probabilities.gather(-1, avoided[..., None]).squeeze(-1)).mean()


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.hidden = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH, bias=False)

    def forward(self, x: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, State]:
        given, found = self.inputs(x), []
        for step in given.unbind(1):
            hidden, state = cell(step + self.hidden(hidden), state)
            found.append(hidden)
        return torch.stack(found, dim=1), (hidden, state)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(VOCABULARY, WIDTH), LSTM(), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The likelihood of each token, the perplexity so far, the penalty of repeating, and the state at the end."""
        x = self.embed(tokens[:, :-1])
        hidden, state, found = torch.zeros(len(x), WIDTH, dtype=x.dtype), torch.zeros(len(x), WIDTH), []
        for stretch in x.split(STRETCH, dim=1):
            out, (hidden, state) = self.lstm(stretch, hidden.detach(), state.detach())
            found.append(out)
        logits = self.head(torch.cat(found, dim=1))
        likelihoods = F.cross_entropy(logits.float().transpose(1, 2), tokens[:, 1:], reduction="none")
        return likelihoods, perplexity(likelihoods, logits), unlikelihood(logits, tokens[:, :-1]), state


def loss(output: tuple[Tensor, ...]) -> Tensor:
    return output[0].mean() + 0.5 * output[2]


def make() -> nn.Module:
    model = Model()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=1.0 if "embed" in name else 1 / math.sqrt(parameter.shape[1]))
    with torch.no_grad():
        model.lstm.inputs.bias[:WIDTH] = STEADY
        model.lstm.inputs.bias[WIDTH : 2 * WIDTH] = -3.0
    return model


def batch() -> Tensor:
    return torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(5))


optimizer = None
STEPS = 1
