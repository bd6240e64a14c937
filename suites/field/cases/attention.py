"""Attention, transformers and mixtures of experts."""

from __future__ import annotations

import torch
from fieldcase import Calls, Made, case, square


@case("x-transformers")
def x_transformers() -> Made:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=32, depth=2, heads=2, attn_dim_head=16, rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=layers))
    return Made(model, (torch.randint(0, 64, (2, 24)),), lambda loss: loss)


@case("performer-pytorch")
def performer() -> Made:
    from performer_pytorch import PerformerLM

    model = PerformerLM(num_tokens=64, max_seq_len=32, dim=32, depth=2, heads=2, dim_head=16, causal=False)
    return Made(model, (torch.randint(0, 64, (2, 32)),), square)


@case("linformer")
def linformer() -> Made:
    from linformer import LinformerLM

    model = LinformerLM(num_tokens=64, dim=32, seq_len=32, depth=2, heads=2, k=8, one_kv_head=True, share_kv=True)
    return Made(model, (torch.randint(0, 64, (2, 32)),), square)


@case("perceiver-pytorch")
def perceiver() -> Made:
    from perceiver_pytorch import Perceiver

    model = Perceiver(
        input_channels=3, input_axis=2, num_freq_bands=6, max_freq=10.0, depth=2, num_latents=8, latent_dim=32, cross_heads=1, latent_heads=2,
        cross_dim_head=16, latent_dim_head=16, num_classes=10, self_per_cross_attn=1,
    )  # fmt: skip
    return Made(model, (torch.randn(2, 16, 16, 3),), square)


@case("rotary-embedding-torch")
def rotary_embedding() -> Made:
    from rotary_embedding_torch import RotaryEmbedding

    rotary = RotaryEmbedding(dim=16)

    def attended(project: torch.nn.Module, turned: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        q, k, v = project(x).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4)
        return torch.nn.functional.scaled_dot_product_attention(rotary.rotate_queries_or_keys(q), rotary.rotate_queries_or_keys(k), v)

    return Made(Calls(attended, torch.nn.Linear(64, 192), rotary), (torch.randn(1, 400, 64),), square)


@case("local-attention")
def local_attention() -> Made:
    from local_attention import LocalTransformer

    model = LocalTransformer(num_tokens=64, dim=32, depth=2, max_seq_len=64, causal=True, local_attn_window_size=16, heads=2, dim_head=16)
    return Made(model, (torch.randint(0, 64, (2, 64)),), square)


@case("reformer-pytorch")
def reformer() -> Made:
    from reformer_pytorch import ReformerLM

    model = ReformerLM(num_tokens=64, dim=32, depth=2, max_seq_len=64, heads=2, bucket_size=8, n_hashes=2, causal=True)
    return Made(model, (torch.randint(0, 64, (2, 64)),), square)


@case("nystrom-attention")
def nystrom_attention() -> Made:
    from nystrom_attention import Nystromformer

    return Made(Nystromformer(dim=32, dim_head=16, heads=2, depth=2, num_landmarks=8, pinv_iterations=6), (torch.randn(2, 64, 32),), square)


@case("soft-moe-pytorch")
def soft_moe() -> Made:
    from soft_moe_pytorch import SoftMoE

    return Made(SoftMoE(dim=32, seq_len=32, num_experts=4), (torch.randn(2, 32, 32),), square)


@case("st-moe-pytorch")
def st_moe() -> Made:
    from st_moe_pytorch import MoE, SparseMoEBlock

    model = SparseMoEBlock(MoE(dim=32, num_experts=4, gating_top_n=2), add_ff_before=True, add_ff_after=True)
    return Made(model, (torch.randn(2, 32, 32),), lambda out: square(out.outputs) + out.total_aux_loss)


@case("mixture-of-experts")
def mixture_of_experts() -> Made:
    from mixture_of_experts import MoE

    return Made(MoE(dim=32, num_experts=4), (torch.randn(2, 64, 32),), lambda out: square(out[0]) + out[1])


@case("agent-attention-pytorch")
def agent_attention() -> Made:
    from agent_attention_pytorch import AgentTransformer

    return Made(AgentTransformer(dim=32, depth=2, num_agent_tokens=8, heads=2, dim_head=16), (torch.randn(2, 24, 32),), square)


@case("aft-pytorch")
def attention_free() -> Made:
    from aft_pytorch import AFTFull, AFTSimple

    layers = (kind(max_seqlen=20, dim=32, hidden_dim=16) for kind in (AFTFull, AFTSimple))
    return Made(torch.nn.Sequential(*layers), (torch.rand(4, 20, 32),), square)


@case("charformer-pytorch")
def charformer() -> Made:
    from charformer_pytorch import GBST

    model = GBST(num_tokens=257, dim=32, max_block_size=4, downsample_factor=2, score_consensus_attn=True)
    return Made(Calls(lambda blocks, x: blocks(x)[0], model), (torch.randint(0, 257, (2, 32)),), square)


@case("h-transformer-1d")
def hierarchical_transformer() -> Made:
    from h_transformer_1d import HTransformer1D

    model = HTransformer1D(num_tokens=64, dim=32, depth=2, causal=False, max_seq_len=64, heads=2, dim_head=16, block_size=8)
    return Made(model, (torch.randint(0, 64, (2, 64)),), square)


@case("mega-pytorch")
def mega() -> Made:
    from mega_pytorch import Mega

    model = Mega(num_tokens=64, dim=32, depth=2, ema_heads=4, attn_dim_qk=16, attn_dim_value=32, laplacian_attn_fn=True)
    return Made(model, (torch.randint(0, 64, (2, 48)),), square)


@case("isab-pytorch")
def induced_set_attention() -> Made:
    from isab_pytorch import ISAB

    return Made(ISAB(dim=32, heads=2, num_latents=8, latent_self_attend=True), (torch.randn(2, 40, 32),), lambda out: square(out[0]) + square(out[1]))


@case("memory-efficient-attention-pytorch")
def chunked_attention() -> Made:
    from memory_efficient_attention_pytorch.transformer import Transformer

    model = Transformer(num_tokens=64, max_seq_len=32, dim=32, depth=2, causal=True, dim_head=16, heads=2, ff_chunks=2)
    return Made(model, (torch.randint(0, 64, (2, 32)),), square)


@case("product-key-memory")
def product_keys() -> Made:
    from product_key_memory import PKM

    return Made(PKM(dim=32, heads=2, dim_head=16, num_keys=16, topk=8), (torch.randn(2, 24, 32),), square)


@case("deformable-attention")
def deformable_attention() -> Made:
    from deformable_attention import DeformableAttention2D

    return Made(DeformableAttention2D(dim=32, dim_head=16, heads=2, downsample_factor=4), (torch.randn(2, 32, 16, 16),), square)


@case("bidirectional-cross-attention")
def bidirectional_attention() -> Made:
    from bidirectional_cross_attention import BidirectionalCrossAttention

    model = BidirectionalCrossAttention(dim=32, heads=2, dim_head=16, context_dim=24)
    return Made(model, (torch.randn(2, 20, 32), torch.randn(2, 12, 24)), lambda out: square(out[0]) + square(out[1]))


@case("compressive-transformer-pytorch")
def compressive_transformer() -> Made:
    from compressive_transformer_pytorch import CompressiveTransformer
    from compressive_transformer_pytorch.autoregressive_wrapper import AutoregressiveWrapper

    model = CompressiveTransformer(num_tokens=64, dim=32, depth=2, seq_len=16, mem_len=16, cmem_len=4, cmem_ratio=4, heads=2, memory_layers=[2])
    segments = Calls(lambda net, x: sum(sum(part[:2]) for part in net(x, return_loss=True)), AutoregressiveWrapper(model))
    return Made(segments, (torch.randint(0, 64, (2, 49)),), lambda loss: loss)


@case("rela-transformer")
def rela_transformer() -> Made:
    from rela_transformer import ReLATransformer

    model = ReLATransformer(num_tokens=64, dim=32, depth=2, max_seq_len=32, heads=2, dim_head=16)
    return Made(model, (torch.randint(0, 64, (2, 24)),), square)


@case("pytorch-mixtures")
def expert_mixture() -> Made:
    from pytorch_mixtures import MoEConfig, TopkMoE

    config = MoEConfig(
        hidden_dim=32, intermediate_dim=64, num_experts=4, expert_fn="ff", expert_act="silu",
        router_fn="topk", capacity_factor=1.25, topk=2, dtype=torch.float32,
    )  # fmt: skip
    return Made(TopkMoE(config), (torch.randn(2, 32, 32),), square)
