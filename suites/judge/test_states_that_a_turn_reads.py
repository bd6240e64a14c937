"""A loop that reads its state at the beginning of a turn, and stores it at the end. Nobody reads what the last turn stored."""

from __future__ import annotations

import torch
from scenario import finds, passes

RATES = torch.linspace(0.9, 1.1, 8) / 3


def levels(kind: torch.dtype = torch.bfloat16) -> torch.Tensor:
    level, heard = torch.zeros(8, dtype=kind), []
    for _ in range(60):
        heard.append(1 + 2 * torch.tanh(level.float() / 20))
        level = level + RATES.to(kind)  # fault
    return torch.stack(heard)


def faded(wide: bool = False) -> torch.Tensor:
    fade, heard = torch.ones(8, dtype=torch.float32 if wide else torch.bfloat16), []
    for sample in torch.randn(60, 8, generator=torch.Generator().manual_seed(0)):
        heard.append(sample * fade)
        fade = fade * 0.985 + 0.0021  # fault
    return torch.stack(heard)


def counted() -> torch.Tensor:
    """A state of whole numbers that its format holds."""
    place, heard = torch.zeros((), dtype=torch.bfloat16), []
    for sample in torch.randn(60, 8, generator=torch.Generator().manual_seed(0)):
        heard.append(sample / (1 + place.float()))
        place = place + 1
    return torch.stack(heard)


def test_a_state_that_is_only_read_before_it_is_stored_again() -> None:
    finds(levels, "accumulated-drift", says="a loop carries this state on")
    finds(faded, "accumulated-drift", says="a loop carries this state on")


def test_the_same_states_in_float32_or_whole() -> None:
    passes(lambda: (faded(wide=True), RATES.bfloat16().float() + 1))
    passes(counted)
