"""Rows of ops that move elements, make tensors, compare, choose and draw."""

from __future__ import annotations

from precheck.ops.spec import Kind, OpSpec, each

_MOVES = (
    OpSpec("_to_copy", Kind.MOVE, "a", linear="a", exact=True, whole=True, casts=True),
    OpSpec("copy", Kind.MOVE, "b", linear="ab", exact=True, casts=True, replaces=True),
    *each("clone contiguous", OpSpec("", Kind.MOVE, "a", linear="a", exact=True, whole=True)),
    *each("gather index index_select take masked_select embedding repeat repeat_interleave flip roll tril triu squeeze",
          OpSpec("", Kind.MOVE, "a", linear="a", exact=True)),
    *each("expand_copy slice_copy select_copy split_with_sizes_copy permute_copy transpose_copy t_copy view_copy unsqueeze_copy squeeze_copy "
          "unbind_copy diagonal_copy", OpSpec("", Kind.MOVE, "a", linear="a", exact=True)),
    *each("slice_backward select_backward pixel_shuffle pixel_unshuffle channel_shuffle im2col", OpSpec("", Kind.MOVE, "a", linear="a", exact=True)),
    OpSpec("constant_pad_nd", Kind.MOVE, "a", linear="a", exact=True),
    OpSpec("neg", Kind.MOVE, "a", linear="a", exact=True),
    OpSpec("abs", Kind.MOVE, "a", exact=True),
)  # fmt: skip

_JOINS = (
    *each("cat stack _chunk_cat", OpSpec("", Kind.JOIN, "a + ...", linear="...", exact=True)),
    *each("where masked_fill index_fill index_copy slice_scatter select_scatter diagonal_scatter masked_scatter",
          OpSpec("", Kind.JOIN, "a + ...", linear="ab", exact=True)),
    OpSpec("scatter_add", Kind.JOIN, "a + ...", linear="ab", accumulates="scatters"),
    OpSpec("index_add", Kind.JOIN, "a + ...", linear="ab", alpha=(3,), accumulates="scatters"),
    *each("put index_put", OpSpec("", Kind.JOIN, "a + ...", linear="ab", accumulates="may scatter")),
    OpSpec("_index_put_impl", Kind.JOIN, "a + ...", linear="ab", accumulates="may scatter"),
    OpSpec("scatter", Kind.JOIN, "a + ...", linear="ab"),
    *each("scatter_reduce index_reduce", OpSpec("", Kind.JOIN, accumulates="may scatter")),
)  # fmt: skip
"""`scatter`, `put` and `index_put` combine elements if an argument says so, so they are not exact in every call."""

_FORMS = each(
    "detach alias lift_fresh _unsafe_view _reshape_alias set resize resize_as is_same_size sym_size sym_stride record_stream "
    "_has_same_storage_numel _version prim::layout _c10d_functional::wait_tensor _c10d_functional::_wrap_tensor_autograd",
    OpSpec("", Kind.FORM),
)

_FACTORIES = (
    *each("full scalar_tensor zeros ones", OpSpec("", Kind.FACTORY, constant="number")),
    *each("fill zero", OpSpec("", Kind.FACTORY, constant="number", replaces=True)),
    OpSpec("arange", Kind.FACTORY, constant="range"),
    *each("full_like zeros_like ones_like new_full new_zeros new_ones", OpSpec("", Kind.FACTORY, form=True, constant="number")),
    *each("empty_like new_empty new_empty_strided", OpSpec("", Kind.FACTORY, form=True)),
    *each("empty empty_strided empty_permuted _efficientzerotensor", OpSpec("", Kind.FACTORY)),
)

_DRAWS = (
    *each("rand uniform", OpSpec("", Kind.DRAW, real=True, uniform=True)),
    *each("exponential log_normal", OpSpec("", Kind.DRAW, real=True, positive=True)),
    *each("randn normal normal_functional cauchy", OpSpec("", Kind.DRAW, real=True)),
    OpSpec("rand_like", Kind.DRAW, form=True, real=True, uniform=True),
    OpSpec("randn_like", Kind.DRAW, form=True, real=True),
    OpSpec("randint_like", Kind.DRAW, form=True),
    *each("randint randperm random bernoulli multinomial poisson binomial geometric", OpSpec("", Kind.DRAW)),
    OpSpec("native_dropout", Kind.DRAW, "a", linear="a"),
)

_COMPARISONS = (
    *each("gt lt ge le", OpSpec("", Kind.ORDER)),
    *each("eq ne", OpSpec("", Kind.EQUALITY)),
    *each("isnan isinf isfinite isposinf isneginf signbit equal allclose isclose", OpSpec("", Kind.TEST)),
    *each("logical_and logical_or logical_xor logical_not", OpSpec("", Kind.LOGICAL)),
    *each("all any", OpSpec("", Kind.QUESTION)),
)

_CHOICES = (
    *each("topk max min", OpSpec("", Kind.CHOICE, "a", exact=True, chooses="extreme", values=True)),
    *each("argmax argmin", OpSpec("", Kind.CHOICE, chooses="extreme")),
    *each("amax amin", OpSpec("", Kind.CHOICE, "a", steady=True, exact=True)),
    OpSpec("median", Kind.CHOICE, "a", exact=True, chooses="rank", values=True),
    OpSpec("nanmedian", Kind.CHOICE, "a", exact=True, chooses="rank", values=True),
    OpSpec("sort", Kind.CHOICE, "a", exact=True, chooses="rank", values=True, ordered=True),
    *each("kthvalue mode cummax cummin", OpSpec("", Kind.CHOICE, "a", exact=True, chooses="rank", values=True)),
    *each("searchsorted bucketize", OpSpec("", Kind.CHOICE, chooses="place")),
)

_POOLS = (
    *each("max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d", OpSpec("", Kind.POOL, "a", exact=True)),
    *each("avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d", OpSpec("", Kind.POOL, "a", linear="a")),
)

ROWS = (*_MOVES, *_JOINS, *_FORMS, *_FACTORIES, *_DRAWS, *_COMPARISONS, *_CHOICES, *_POOLS)
