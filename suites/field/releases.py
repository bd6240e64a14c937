"""`python suites/field/releases.py [NAMES]`: bugs of low precision that a later release has mended, or has not, in published code.

It says what `measure` finds in the release that is installed. For another one, put that in front:

    pip install --no-deps --target old transformers==4.38.0 tokenizers==0.15.2 huggingface_hub==0.23.5
    PYTHONPATH=old python suites/field/releases.py llama gemma xlnet pegasus-x bloom
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import precheck

POSITIONS = 300
"""More than the 256 up to which bfloat16 holds every whole number."""


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """Published code: how it is called, and the precision under which a release had a bug."""

    package: str
    precision: str
    made: Callable[[], tuple[torch.nn.Module, Any, Callable[[Any], torch.Tensor]]]

    def report(self) -> precheck.Report:
        torch.manual_seed(0)
        model, inputs, loss = self.made()
        return precheck.measure(model, inputs, precision=self.precision, loss=loss)


def architecture(family: str, kind: str) -> tuple[torch.nn.Module, Any, Callable[[Any], torch.Tensor]]:
    """A small model of transformers with random weights, on texts of `POSITIONS` tokens."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "architectures"))
    import tiny

    before = tiny.LENGTH
    tiny.lengthen(POSITIONS)
    try:
        built = tiny.built(family, kind)
    finally:
        tiny.lengthen(before)
    if built.model is None:
        raise ImportError(built.why)
    return built.model, built.inputs, tiny.losses


class Attention(torch.nn.Module):
    """Attention whose queries and keys a package turns by their positions."""

    def __init__(self, turned: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]], *parts: torch.nn.Module) -> None:
        super().__init__()
        self.turned, self.parts = turned, torch.nn.ModuleList(parts)
        self.enter, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.enter(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        query, key = self.turned(query, key)
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def rotary() -> tuple[torch.nn.Module, Any, Callable[[Any], torch.Tensor]]:
    from rotary_embedding_torch import RotaryEmbedding

    made = RotaryEmbedding(dim=16)
    model = Attention(lambda query, key: (made.rotate_queries_or_keys(query), made.rotate_queries_or_keys(key)), made)
    return model, torch.randn(2, 512, 64), lambda out: out.square().mean()


class Local(torch.nn.Module):
    def __init__(self, attention: torch.nn.Module) -> None:
        super().__init__()
        self.enter, self.attention, self.out = torch.nn.Linear(64, 192), attention, torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.attention(*self.enter(x).chunk(3, -1)))  # type: ignore[no-any-return]


def local() -> tuple[torch.nn.Module, Any, Callable[[Any], torch.Tensor]]:
    from local_attention import LocalAttention

    attention = LocalAttention(dim=64, window_size=256, causal=True, autopad=True)
    return Local(attention), torch.randn(2, 512, 64), lambda out: out.square().mean()


def decoder() -> tuple[torch.nn.Module, Any, Callable[[Any], torch.Tensor]]:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=64, depth=2, heads=4, rotary_pos_emb=True)
    tokens = torch.randint(0, 256, (2, 512))
    model = TransformerWrapper(num_tokens=256, max_seq_len=512, attn_layers=layers)
    return model, tokens, lambda out: torch.nn.functional.cross_entropy(out.flatten(0, 1).float(), tokens.flatten())


RELEASES = {
    "llama": Release("transformers", "bf16-mixed", lambda: architecture("causal", "llama")),
    "gemma": Release("transformers", "bf16-mixed", lambda: architecture("causal", "gemma")),
    "xlnet": Release("transformers", "bf16-mixed", lambda: architecture("causal", "xlnet")),
    "pegasus-x": Release("transformers", "bf16-true", lambda: architecture("seq2seq", "pegasus_x")),
    "bloom": Release("transformers", "bf16-mixed", lambda: architecture("causal", "bloom")),
    "x-transformers": Release("x-transformers", "bf16-mixed", decoder),
    "local-attention": Release("local-attention", "bf16-mixed", local),
    "rotary": Release("rotary-embedding-torch", "bf16-mixed", rotary),
}


def main() -> int:
    """0, whatever is found."""
    for name in sys.argv[1:] or RELEASES:
        release = RELEASES[name]
        try:
            errors = release.report().errors
        except ImportError as error:
            print(f"{name}: {error}")
            continue
        version = importlib.metadata.version(release.package)
        where = errors[0].source if errors else ""
        print(f"{name} ({release.package} {version}, {release.precision}): {errors[0].rule if errors else 'passes'} {where}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
