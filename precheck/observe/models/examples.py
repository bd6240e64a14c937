"""Makes an input for a model if the user gave none and the model tells what it takes.

It tries, in this order, `example_input_array` (Lightning), `main_input_name` with the sizes of `config` (Hugging Face), `dummy_inputs`
(Hugging Face), and the first layer of a torch.nn.Sequential. Values are drawn from a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from precheck.observe.containers import mapped

ROWS, LENGTH = 4, 16
"""Size of a batch, and length of a sequence if the model allows it."""
_SIDES = (32, 28, 64, 96, 128, 224, 256, 299, 384, 512, 16, 8, 4, 1)
"""Sides of a picture, in the order in which they are tried: a Linear after a Flatten accepts only one."""
_TRANSPARENT = (nn.Flatten, nn.Identity, nn.Dropout)
_CONVOLUTIONS: tuple[tuple[type[nn.Module], int], ...] = ((nn.Conv1d, 1), (nn.Conv2d, 2), (nn.Conv3d, 3))


def example(model: nn.Module) -> Any:
    """Inputs of `model` for `measure`, on the device of its weights. None if the model does not tell."""
    generator = torch.Generator().manual_seed(0)
    found = next((found for way in (_array, _pretrained, _dummy, _layers) if (found := way(model, generator)) is not None), None)
    weight = next(model.parameters(), None)
    return found if weight is None else mapped(found, lambda tensor: tensor.to(weight.device))


def _array(model: nn.Module, generator: torch.Generator) -> Any:
    return getattr(model, "example_input_array", None)


def _pretrained(model: nn.Module, generator: torch.Generator) -> Any:
    """Makes Hugging Face's main input by its name: token ids, pictures or sound."""
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
    ids = torch.randint(size, (ROWS, length), generator=generator, device="cpu")
    padding = getattr(text, "pad_token_id", None)
    if isinstance(padding, int) and size > 1:
        ids[ids == padding] = (padding + 1) % size  # padding is not text
    return {"input_ids": ids, "decoder_input_ids": ids.clone()} if getattr(config, "is_encoder_decoder", False) else {"input_ids": ids}


def _pixels(config: Any, generator: torch.Generator) -> dict[str, torch.Tensor] | None:
    vision = getattr(config, "vision_config", config)
    size, channels = getattr(vision, "image_size", None), getattr(vision, "num_channels", 3)
    sides = [size, size] if isinstance(size, int) else size
    if sides is None:
        sides = [224, 224]  # convolutional models take any size
    return {"pixel_values": torch.randn(ROWS, channels, *sides, generator=generator, device="cpu")}


def _sound(config: Any, generator: torch.Generator) -> dict[str, torch.Tensor] | None:
    """A quarter of a second at 16 kHz, or a whole spectrogram for models of these."""
    length, bins = getattr(config, "max_length", None), getattr(config, "num_mel_bins", None)
    shape = (length, bins) if isinstance(length, int) and isinstance(bins, int) else (4000,)
    return {"input_values": torch.randn(ROWS, *shape, generator=generator, device="cpu")}


_MAIN: dict[str, Callable[[Any, torch.Generator], dict[str, torch.Tensor] | None]] = {
    "input_ids": _ids, "pixel_values": _pixels, "input_values": _sound,
}  # fmt: skip


def _dummy(model: nn.Module, generator: torch.Generator) -> Any:
    try:
        return getattr(model, "dummy_inputs", None)
    except NotImplementedError:  # diffusers raises this if there are none
        return None


def _layers(model: nn.Module, generator: torch.Generator) -> torch.Tensor | None:
    """Makes an input for the layer that reads it: the model itself, or the first layer of a Sequential that needs a certain shape."""
    layer = _first(model)
    if isinstance(layer, nn.Linear) and layer.in_features:
        return torch.randn(ROWS, layer.in_features, generator=generator, device="cpu")
    if isinstance(layer, nn.Embedding):
        return torch.randint(layer.num_embeddings, (ROWS, LENGTH), generator=generator, device="cpu")
    if isinstance(layer, nn.RNNBase):
        leading = (ROWS, LENGTH) if layer.batch_first else (LENGTH, ROWS)
        return torch.randn(*leading, layer.input_size, generator=generator, device="cpu")
    if isinstance(layer, nn.LayerNorm):
        return torch.randn(ROWS, *layer.normalized_shape, generator=generator, device="cpu")
    for kind, dimensions in _CONVOLUTIONS:
        if isinstance(layer, kind) and layer.in_channels:
            shapes = [(ROWS, int(str(layer.in_channels)), *[side] * dimensions) for side in _SIDES]
            return torch.randn(next((shape for shape in shapes if _takes(model, shape)), shapes[0]), generator=generator, device="cpu")
    return None


def _first(model: nn.Module) -> nn.Module | None:
    if not isinstance(model, nn.Sequential):
        return model
    return next((_first(child) for child in model if not isinstance(child, _TRANSPARENT)), None)


def _takes(model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the model runs on an input of that shape, on the meta device."""
    held = {name: tensor.detach().to("meta") for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    try:
        with torch.no_grad():
            torch.func.functional_call(model, held, (torch.empty(shape, device="meta"),))
    except Exception:  # a layer may raise anything for a wrong shape
        return False
    return True
