"""Networks and layers: attention, recurrences, positions, state spaces."""

from __future__ import annotations

import torch
from fieldcase import Calls, Made, case, square


@case("ngpt-pytorch")
def normalized_gpt() -> Made:
    from nGPT_pytorch import nGPT

    return Made(nGPT(num_tokens=64, dim=32, depth=2, dim_head=16, heads=2), (torch.randint(0, 64, (2, 48)),), square)


@case("axial-positional-embedding")
def axial_positions() -> Made:
    from axial_positional_embedding import AxialPositionalEmbedding

    def placed(layer: torch.nn.Module, places: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x + places(x))

    return Made(Calls(placed, torch.nn.Linear(16, 16), AxialPositionalEmbedding(16, (8, 8), (8, 8))), (torch.randn(2, 64, 16),), square)


@case("axial-positional-embedding")
def continuous_axial_positions() -> Made:
    from axial_positional_embedding import ContinuousAxialPositionalEmbedding

    def placed(layer: torch.nn.Module, places: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x + places((24, 20)))

    return Made(
        Calls(placed, torch.nn.Linear(16, 16), ContinuousAxialPositionalEmbedding(16, num_axial_dims=2)), (torch.randn(2, 24, 20, 16),), square
    )


@case("x-unet")
def x_unet() -> Made:
    from x_unet import XUnet

    return Made(XUnet(dim=16, channels=3, dim_mults=(1, 2), num_blocks_per_stage=(1, 1), num_self_attn_per_stage=(0, 1), nested_unet_depths=(1, 0),
                      consolidate_upsample_fmaps=True, attn_heads=2, attn_dim_head=8), (torch.randn(1, 3, 16, 16),), square)  # fmt: skip


@case("token-shift-gpt")
def token_shift() -> Made:
    from token_shift_gpt import TokenShiftGPT

    return Made(TokenShiftGPT(num_tokens=64, dim=32, max_seq_len=32, depth=2), (torch.randint(0, 64, (2, 32)),), square)


@case("triangle-multiplicative-module")
def triangle_product() -> Made:
    from triangle_multiplicative_module import TriangleMultiplicativeModule

    return Made(TriangleMultiplicativeModule(dim=16, hidden_dim=16, mix="outgoing"), (torch.randn(1, 32, 32, 16),), square)


@case("graph-transformer-pytorch")
def graph_transformer() -> Made:
    from graph_transformer_pytorch import GraphTransformer

    model = GraphTransformer(dim=16, depth=2, dim_head=8, heads=2, edge_dim=8, with_feedforwards=True, gated_residual=True, rel_pos_emb=True)
    return Made(model, (torch.randn(1, 24, 16), torch.randn(1, 24, 24, 8)), lambda out: square(out[0]))


@case("palm-pytorch")
def palm() -> Made:
    from palm_pytorch import PaLM

    return Made(PaLM(num_tokens=64, dim=32, depth=2, heads=2, dim_head=16), (torch.randint(0, 64, (2, 300)),), square)


@case("gsa-pytorch")
def global_self_attention() -> Made:
    from gsa_pytorch import GSA

    return Made(GSA(dim=8, dim_out=8, dim_key=8, heads=2, rel_pos_length=16), (torch.randn(1, 8, 16, 16),), square)


@case("mixture-of-attention")
def attention_mixture() -> Made:
    from mixture_of_attention import MixtureOfAttention

    layer = MixtureOfAttention(
        dim=16, num_routed_queries=8, num_routed_key_values=8, num_experts=2, dim_head=8, heads=2, use_triton=False, flash_attn=False
    )
    return Made(layer, (torch.randn(1, 48, 16),), square)


@case("x-metaformer")
def caformer() -> Made:
    from x_metaformer import CAFormer

    return Made(
        CAFormer(in_channels=3, depths=(1, 1), dims=(16, 32), init_kernel_size=3, init_stride=2, drop_path_rate=0.1),
        (torch.randn(2, 3, 16, 16),),
        square,
    )


@case("curated-transformers")
def linear_biases() -> Made:
    from curated_transformers.layers import AttentionHeads, AttentionMask, QkvMode, ScaledDotProductAttention, SelfAttention
    from curated_transformers.layers.attention import AttentionLinearBiases

    biases = AttentionLinearBiases(n_attention_heads=4, is_causal=True, is_inverted=True)
    attention = SelfAttention(
        attention_heads=AttentionHeads.uniform(4, QkvMode.SEPARATE),
        attention_scorer=ScaledDotProductAttention(dropout_prob=0.0, linear_biases=biases),
        hidden_width=32, qkv_mode=QkvMode.SEPARATE, rotary_embeds=None, use_bias=True,
    )  # fmt: skip

    def attended(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x, AttentionMask(torch.ones(x.shape[:2], dtype=torch.bool)), use_causal_mask=True)[0]

    return Made(Calls(attended, attention), (torch.randn(2, 300, 32),), square)


@case("curated-transformers")
def rotary_attention() -> Made:
    from curated_transformers.layers import AttentionHeads, AttentionMask, QkvMode, ScaledDotProductAttention, SelfAttention
    from curated_transformers.layers.embeddings import QueryKeyRotaryEmbeddings

    attention = SelfAttention(
        attention_heads=AttentionHeads.uniform(2, QkvMode.SEPARATE), attention_scorer=ScaledDotProductAttention(dropout_prob=0.0, linear_biases=None),
        hidden_width=32, qkv_mode=QkvMode.SEPARATE, rotary_embeds=QueryKeyRotaryEmbeddings(fraction=1.0, head_width=16), use_bias=True,
    )  # fmt: skip

    def attended(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x, AttentionMask(torch.ones(x.shape[:2], dtype=torch.bool)), use_causal_mask=True)[0]

    return Made(Calls(attended, attention), (torch.randn(2, 300, 32),), square)


@case("native-sparse-attention-pytorch")
def sparse_attention() -> Made:
    from native_sparse_attention_pytorch import SparseAttention

    layer = SparseAttention(dim=32, dim_head=16, heads=2, sliding_window_size=4,
                            compress_block_size=4, compress_block_sliding_stride=2, selection_block_size=4,
                            num_selected_blocks=2)  # fmt: skip
    return Made(layer, (torch.randn(2, 32, 32),), square)


@case("simplicial-attention")
def simplicial_attention() -> Made:
    from simplicial_attention import naive_two_simplicial_attend

    def attended(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        q, k, v, k2, v2 = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in layer(x).chunk(5, -1))
        return naive_two_simplicial_attend(q, (k, k2), (v, v2), causal=True)

    return Made(Calls(attended, torch.nn.Linear(16, 80)), (torch.randn(2, 16, 16),), square)


@case("gaussian-adaptive-attention")
def gaussian_attention() -> Made:
    from gaussian_adaptive_attention import MultiHeadGaussianAdaptiveAttention

    return Made(MultiHeadGaussianAdaptiveAttention(norm_axis=1, num_heads=2, num_gaussians=3, padding_value=None), (torch.randn(2, 24, 16),), square)


@case("sru")
def simple_recurrence() -> Made:
    from sru import SRU

    return Made(SRU(8, 8, num_layers=2), (torch.randn(24, 2, 8),), lambda out: square(out[0]))


@case("s5-pytorch")
def s5_block() -> Made:
    from s5 import S5Block

    return Made(S5Block(8, 8, False), (torch.randn(2, 48, 8),), square)


@case("lru-pytorch")
def linear_recurrence() -> Made:
    from LRU_pytorch import LRU

    return Made(LRU(in_features=8, out_features=8, state_features=6), (torch.randn(2, 24, 8),), square)


def _recurrent(name: str, kind: str) -> None:
    """A case called `name`: a layer of torchrecurrent."""

    def make() -> Made:
        import torchrecurrent

        return Made(getattr(torchrecurrent, kind)(8, 12), (torch.randn(16, 2, 8),), lambda out: square(out[0]))

    make.__name__ = name
    case("torchrecurrent")(make)


_recurrent("coupled_oscillators", "coRNN")
_recurrent("long_expressive_memory", "LEM")
_recurrent("neural_architecture_cell", "NAS")


@case("rational-activations")
def rational_activation() -> Made:
    from rational.torch import Rational

    return Made(torch.nn.Sequential(torch.nn.Linear(8, 16), Rational(cuda=False), torch.nn.Linear(16, 4)), (torch.randn(32, 8),), square)
