"""Puts all rows of tokens into one row without their padding, as packed training does, and takes results apart again."""

from __future__ import annotations

from typing import Any

import torch

from precheck.observe.containers import call, mapped, tensors
from precheck.observe.job import InputError
from precheck.pairs.altered_calls import Language, Step

IGNORED = -100
"""The label that losses of torch and transformers leave out."""


class Packing:
    """A batch of tokens, and which of them are no padding.

    The rows of a packed row are told apart by positions that begin anew, as models of transformers do it if they are given no mask, or by the user's
    `step`. A plain call computes something for padding too. That is compared with nothing, and becomes zero.
    """

    def __init__(self, language: Language, inputs: Any, step: Step | None) -> None:
        self.language, self.step = language, None if language.takes("position_ids") else step
        self.tokens = language.needs("packing", *(() if self.step else ("position_ids",)))
        named = inputs if isinstance(inputs, dict) else {}
        mask = named.get("attention_mask")
        mask = torch.ones_like(self.tokens) if mask is None else mask
        if mask.shape != self.tokens.shape:
            raise InputError(f"packing needs an attention_mask of shape (batch, length), not {tuple(mask.shape)}; without padding leave it out")
        self.kept = mask.bool()
        given = named.get("position_ids")
        counted = (self.kept.cumsum(1) - 1).clamp(min=0)
        self.positions = counted if given is None else given.expand_as(self.tokens)
        self.first = self.kept & (self.kept.cumsum(1) == 1)
        packed, first = self.positions[self.kept], self.first[self.kept]
        if not self.step and bool((packed[1:][first[1:]] - packed[:-1][first[1:]] == 1).any()):
            raise InputError("packing: position_ids of a row go on where those of the row before it end, so that nothing tells the two apart")

    def plain(self, model: torch.nn.Module, inputs: Any) -> Any:
        """Calls the model on padded rows. Results at padding become zero."""
        if isinstance(inputs, dict):
            inputs = {**inputs, **self._labels(inputs)}
            if not self.step and not bool(self.kept.all()):
                inputs["position_ids"] = self.positions
        return mapped(call(model, inputs), self.hidden)

    def ask(self, model: torch.nn.Module, inputs: Any) -> Any:
        """Calls the model on all rows in one, and splits the result."""
        return self._asked(model, inputs, self._packed(self.positions))

    def unread(self, model: torch.nn.Module, inputs: Any) -> str:
        """A sentence, if positions that begin anew change no bit of a model's results, so that nothing tells the rows apart. Else ""."""
        positions = self._packed(self.positions)
        with torch.no_grad():
            anew, on = (dict(tensors(self._asked(model, inputs, each))) for each in (positions, torch.arange(positions.shape[1])[None].to(positions)))
        if self.step or anew.keys() != on.keys() or not all(torch.equal(each, on[name]) for name, each in anew.items()):
            return ""
        return "the model takes position_ids and does not read them: with others each bit is the same, so nothing tells packed rows apart"

    def _asked(self, model: torch.nn.Module, inputs: Any, positions: torch.Tensor) -> Any:
        tokens = self._packed(self.tokens)
        if self.step is not None:
            return mapped(self.step(model, tokens, positions)[0], self.unpacked)
        if isinstance(inputs, dict):
            inputs = {name: value for name, value in {**inputs, **self._labels(inputs)}.items() if name != "attention_mask"}
        more = {"use_cache": False} if self.language.takes("use_cache") else {}
        return mapped(self.language.ask(model, mapped(inputs, self._packed), tokens, **{"position_ids": positions, **more}), self.unpacked)

    def hidden(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of padded rows with zeros where padding is."""
        if tensor.shape[:2] != self.kept.shape or bool(self.kept.all()):
            return tensor
        return tensor.masked_fill(~self.kept.reshape(*self.kept.shape, *[1] * (tensor.dim() - 2)), 0)

    def unpacked(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of one packed row as padded rows, with zeros where padding is."""
        if tensor.shape[:2] != (1, int(self.kept.sum())):
            return tensor
        return tensor.new_zeros(*self.kept.shape, *tensor.shape[2:]).index_put(self.kept.nonzero(as_tuple=True), tensor[0])

    def _packed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor[self.kept][None] if tensor.shape[:2] == self.kept.shape else tensor

    def _labels(self, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Labels without the first token of each row, which would be predicted from the row before, or from padding."""
        labels = inputs.get("labels")
        if not isinstance(labels, torch.Tensor) or labels.shape != self.kept.shape:
            return {}
        if bool((labels[~self.kept] != IGNORED).any()):
            raise InputError(f"packing: labels count tokens that attention_mask hides; set these labels to {IGNORED}")
        return {"labels": labels.masked_fill(self.first, IGNORED)}
