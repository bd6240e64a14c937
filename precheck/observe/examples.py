"""An input for a model that says what it takes, for where the user gave none.

Asked in turn: `example_input_array` (Lightning's convention), `main_input_name` with the sizes of `config`, and `dummy_inputs`
(Hugging Face's), then the first layer of a torch.nn.Sequential. Values are drawn from a seed of their own, so that they are the same every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from precheck.observe.containers import mapped

ROWS, LENGTH = 4, 16
"""Of a batch, and of a sequence where the model allows as many."""
_SIDES = (32, 28, 64, 96, 128, 224, 256, 299, 384, 512, 16, 8, 4, 1)
"""Of a picture, in the order in which they are tried: a Linear behind a Flatten takes one of them."""
_TRANSPARENT = (nn.Flatten, nn.Identity, nn.Dropout)
_CONVOLUTIONS: tuple[tuple[type[nn.Module], int], ...] = ((nn.Conv1d, 1), (nn.Conv2d, 2), (nn.Conv3d, 3))


def example(model: nn.Module) -> Any:
    """What `measure` takes as inputs of `model`, on the device of its weights; None where the model does not say."""
    generator = torch.Generator().manual_seed(0)
    found = next((found for way in (_array, _pretrained, _dummy, _layers) if (found := way(model, generator)) is not None), None)
    weight = next(model.parameters(), None)
    return found if weight is None else mapped(found, lambda tensor: tensor.to(weight.device))


def _array(model: nn.Module, generator: torch.Generator) -> Any:
    return getattr(model, "example_input_array", None)


def _pretrained(model: nn.Module, generator: torch.Generator) -> Any:
    """By Hugging Face's name of the main input: token ids, pictures or sound."""
    config, name = getattr(model, "config", None), getattr(model, "main_input_name", None)
    make = _MAIN.get(name) if isinstance(name, str) else None
    return make(config, generator) if make and config is not None else None


def _ids(config: Any, generator: torch.Generator) -> dict[str, torch.Tensor] | None:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    size = getattr(text, "vocab_size", None)
    if not isinstance(size, int) or size < 1:
        return None
    most = getattr(text, "max_position_embeddings", None)
    length = min(LENGTH, most) if isinstance(most, int) and most > 2 else LENGTH
    ids = torch.randint(size, (ROWS, length), generator=generator)
    padding = getattr(text, "pad_token_id", None)
    if isinstance(padding, int) and size > 1:
        ids[ids == padding] = (padding + 1) % size  # or else part of it would be no text
    return {"input_ids": ids, "decoder_input_ids": ids.clone()} if getattr(config, "is_encoder_decoder", False) else {"input_ids": ids}


def _pixels(config: Any, generator: torch.Generator) -> dict[str, torch.Tensor] | None:
    vision = getattr(config, "vision_config", config)
    size, channels = getattr(vision, "image_size", None), getattr(vision, "num_channels", 3)
    sides = [size, size] if isinstance(size, int) else size
    if sides is None:
        sides = [224, 224]  # convolutional ones take any
    return {"pixel_values": torch.randn(ROWS, channels, *sides, generator=generator)}


def _sound(config: Any, generator: torch.Generator) -> dict[str, torch.Tensor] | None:
    """A quarter of a second at 16 kHz; of models of spectrograms, one whole."""
    length, bins = getattr(config, "max_length", None), getattr(config, "num_mel_bins", None)
    shape = (length, bins) if isinstance(length, int) and isinstance(bins, int) else (4000,)
    return {"input_values": torch.randn(ROWS, *shape, generator=generator)}


_MAIN: dict[str, Callable[[Any, torch.Generator], dict[str, torch.Tensor] | None]] = {
    "input_ids": _ids, "pixel_values": _pixels, "input_values": _sound,
}  # fmt: skip


def _dummy(model: nn.Module, generator: torch.Generator) -> Any:
    try:
        return getattr(model, "dummy_inputs", None)
    except NotImplementedError:  # diffusers' way to say that there are none
        return None


def _layers(model: nn.Module, generator: torch.Generator) -> torch.Tensor | None:
    """By the sizes of the layer that reads the input: the model itself, or the first that matters of a Sequential."""
    layer = _first(model)
    if isinstance(layer, nn.Linear) and layer.in_features:
        return torch.randn(ROWS, layer.in_features, generator=generator)
    if isinstance(layer, nn.Embedding):
        return torch.randint(layer.num_embeddings, (ROWS, LENGTH), generator=generator)
    if isinstance(layer, nn.RNNBase):
        leading = (ROWS, LENGTH) if layer.batch_first else (LENGTH, ROWS)
        return torch.randn(*leading, layer.input_size, generator=generator)
    if isinstance(layer, nn.LayerNorm):
        return torch.randn(ROWS, *layer.normalized_shape, generator=generator)
    for kind, dimensions in _CONVOLUTIONS:
        if isinstance(layer, kind) and layer.in_channels:
            shapes = [(ROWS, int(str(layer.in_channels)), *[side] * dimensions) for side in _SIDES]
            return torch.randn(next((shape for shape in shapes if _takes(model, shape)), shapes[0]), generator=generator)
    return None


def _first(model: nn.Module) -> nn.Module | None:
    if not isinstance(model, nn.Sequential):
        return model
    return next((_first(child) for child in model if not isinstance(child, _TRANSPARENT)), None)


def _takes(model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the model runs on an input of that shape, tried without numbers (on the meta device)."""
    held = {name: tensor.detach().to("meta") for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    try:
        with torch.no_grad():
            torch.func.functional_call(model, held, (torch.empty(shape, device="meta"),))
    except Exception:  # whatever a layer says to a shape that is not its own
        return False
    return True
