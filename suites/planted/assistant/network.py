"""A chat model that scores answers, as Qwen3 is served by vLLM: grouped queries, YaRN's rotary table, pages of keys and values, and a decode loop."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab_size: int = 160
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    intermediate_size: int = 128
    rope_theta: float = 10_000.0
    rope_factor: float = 4.0
    trained_length: int = 256
    sliding_window: int = 24
    page_size: int = 16
    rms_norm_eps: float = 1e-6


def inverse_frequencies(config):
    """YaRN: high frequencies as they were trained, low ones stretched, and a ramp between."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    plain = config.rope_theta**-half

    def dimension(turns):
        return config.head_dim * math.log(config.trained_length / (turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low, high = math.floor(dimension(32)), math.ceil(dimension(1))
    ramp = ((torch.arange(config.head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain * (1 - ramp) + plain / config.rope_factor * ramp


def rotary_table(positions, config):
    """Cosines and sines of each position's angles."""
    angles = positions.float()[..., None] * inverse_frequencies(config)
    angles = torch.cat((angles, angles), -1)
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x, table):
    first, second = x.chunk(2, -1)
    return x * table[0].unsqueeze(1) + torch.cat((-second, first), -1) * table[1].unsqueeze(1)


def slots(positions, config):
    """Where a token's keys lie: the page, and the place in it."""
    page = positions // config.page_size
    return torch.stack((page, positions - page * config.page_size))


def visible(queries, keys, config):
    """What a token may see: what came before, within the window."""
    apart = queries[:, :, None] - keys[:, None, :]
    return (apart >= 0) & (apart < config.sliding_window)


def occurrences(history, vocab_size):
    """How often each word has been written so far."""
    counts = torch.zeros(history.shape[0], vocab_size, dtype=torch.long)
    return counts.scatter_add_(1, history, torch.ones_like(history))


def penalised(logits, counts, penalty=0.002):
    return logits.float() - penalty * counts


def entropy(logits, temperature=0.02):
    """Of the distribution that is sampled from."""
    logs = (logits.float() / temperature).log_softmax(-1)
    return -(logs.exp() * logs).sum(-1)


def chosen(logits, word):
    """The logarithm of the chance of the word that was written."""
    return logits.float().log_softmax(-1).gather(-1, word[:, None])[:, 0]


def margins(steps, score):
    """By how much each answer is behind the best one of its question. `score`: what the answers had before these steps."""
    for each in steps:
        score = score + each
    return score.max(-1, keepdim=True).values - score


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class PagedCache:
    """Keys and values of a layer in pages; each row has its own."""

    def __init__(self, config, rows, pages):
        self.config, self.pages = config, pages
        self.places = torch.full((rows, pages * config.page_size), -1)
        self.store = None

    def write(self, positions, key, value):
        both = torch.stack((key, value))
        if self.store is None:
            self.store = both.new_zeros(*both.shape[:3], self.places.shape[1], both.shape[-1])
        page, offset = slots(positions, self.config)
        index = (page % self.pages) * self.config.page_size + offset
        self.places = self.places.scatter(1, index, positions)
        spread = index[None, :, None, :, None].expand(both.shape)
        self.store = self.store.scatter(3, spread, both)
        return self.store[0], self.store[1], self.places


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        size = config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.num_heads * size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.num_kv_heads * size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.num_kv_heads * size, bias=False)
        self.o_proj = nn.Linear(config.num_heads * size, config.hidden_size, bias=False)
        self.q_norm, self.k_norm = RMSNorm(size, config.rms_norm_eps), RMSNorm(size, config.rms_norm_eps)

    def forward(self, x, positions, cache):
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        table = rotary_table(positions, self.config)
        query, key = rotate(self.q_norm(query), table), rotate(self.k_norm(key), table)
        key, value, places = cache.write(positions, key.to(value.dtype), value)
        groups = self.config.num_heads // self.config.num_kv_heads
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = query.to(key.dtype) @ key.transpose(-1, -2) / math.sqrt(self.config.head_dim)
        seen = (visible(positions, places, self.config) & (places >= 0)[:, None, :])[:, None]
        weights = scores.float().masked_fill(~seen, -torch.inf).softmax(-1).to(value.dtype)
        return self.o_proj((weights @ value).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn, self.mlp = Attention(config), MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x, positions, cache):
        x = x + self.self_attn(self.input_layernorm(x), positions, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class ForCausalLM(nn.Module):
    """Two channels of the stream are massive, as in trained models of this kind."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.lm_head.weight = self.embed_tokens.weight
        self.register_buffer("massive", torch.zeros(config.hidden_size).index_fill(0, torch.tensor([5, 40]), 640.0))

    def hidden(self, word, positions, caches):
        x = self.embed_tokens(word) + self.massive
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, positions, cache)
        return self.norm(x)

    @torch.inference_mode()
    def forward(self, prompt, answer, start, history, score):
        rows, length = prompt.shape
        caches = [PagedCache(self.config, rows, 3) for _ in self.layers]
        positions = start[:, None] + torch.arange(length)
        logits = self.lm_head(self.hidden(prompt, positions, caches)[:, -1])
        steps, spread = [], []
        for turn in range(answer.shape[1]):
            logits = penalised(logits, occurrences(history, self.config.vocab_size))
            steps.append(chosen(logits, answer[:, turn]).view(score.shape))
            spread.append(entropy(logits))
            history = torch.cat((history, answer[:, turn : turn + 1]), 1)
            positions = positions[:, -1:] + 1
            logits = self.lm_head(self.hidden(answer[:, turn : turn + 1], positions, caches)[:, -1])
        return {"logits": logits, "behind": margins(steps, -score.float() / 100), "entropy": torch.stack(spread)}


def make():
    torch.manual_seed(0)
    return ForCausalLM(Config())


def batch():
    generator = torch.Generator().manual_seed(7)
    common = torch.randint(0, 4, (4, 900), generator=generator)
    rare = torch.randint(0, 160, (4, 300), generator=generator)
    return {
        "prompt": torch.randint(0, 160, (4, 20), generator=generator),
        "answer": torch.randint(0, 160, (4, 8), generator=generator),
        "start": torch.tensor([843, 611, 777, 934]),
        "history": torch.cat((common * (common < 3), rare), 1),
        "score": torch.randint(41_000, 41_900, (2, 2), generator=generator),
    }


loss = None
optimizer = None
STEPS = 1
