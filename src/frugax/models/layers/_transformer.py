"""Attention and transformer layers, up to a whole language model (`TransformerLM`).

All data is (batch, time, features). Many blocks in a row compile as one loop.
"""

import dataclasses
from typing import Literal

from frugax.models.graph import (
    Composite,
    Connection,
    IOKey,
    Layer,
    Repeat,
    op,
    weight_of,
)
from frugax.models.ops import Count, Epsilon, Fraction, Natural, Positive

from ._activations import Dropout
from ._cached_attention import CachedAttention, Decoding
from ._divisors import check_divides
from ._embeddings import Embedding, LearnedPositions
from ._experts import SparseExperts
from ._linear import FeedForward, Linear
from ._norms import LayerNorm, RMSNorm
from ._one_op import RotaryPositions, SinusoidalPositions


@dataclasses.dataclass(frozen=True)
class MultiHeadAttention(Decoding):
    """Scaled dot-product attention with several heads.

    `input` is (batch, time, features), the output (batch, time, dimension). Keys and
    values are computed from `input`, or from `keys` and `values` if these are wired:
    (batch, other time, features); `values` is `keys` by default. `mask` broadcasts to
    (batch, heads, time, other time): boolean, True where a query may look, or numbers
    that are added. Its layers are `query`, `key`, `value` and `output`.
    Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.2.

    Attributes:
        dimension: features of all heads together.
        heads: the number of heads; divides `dimension`.
        kv_heads: the number of heads of keys and values, each shared by neighbouring
            heads of queries; divides `heads`; `heads` by default (Ainslie et al. 2023,
            arXiv:2305.13245).
        causal: whether a position sees only itself and those before.
        bias: whether the linear maps have a bias.
        rotary: whether `RotaryPositions` rotates queries and keys.
        rotary_base: the base of `RotaryPositions`.
        window: how many positions a query sees, with its own; None: all before it
            (Beltagy et al. 2020, arXiv:2004.05150). It needs `causal`.
        cache_length: see `CachedAttention`: the layer then reads new positions only,
            and `position`, the number of those before.

    Example:
        >>> from frugax.models import JaxBackend, MultiHeadAttention, compile
        >>> attention = MultiHeadAttention(64, heads=8, kv_heads=2, causal=True)
        >>> shapes = {"input": ("batch", 16, 64)}
        >>> compiled = compile(attention, JaxBackend(), shapes=shapes)
        >>> compiled.shapes["key.weight"]
        (16, 64)
    """

    dimension: Count
    heads: Count
    kv_heads: Count | None = None
    causal: bool = False
    bias: bool = True
    rotary: bool = False
    rotary_base: Positive = 10000.0
    window: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("window", "cache_length"):
            if getattr(self, name) is not None and not self.causal:
                raise ValueError(
                    f"{self.title}.{name} needs causal=True: it looks back from each "
                    "position."
                )
        check_divides(self, "heads", of="dimension")
        check_divides(self, "kv_heads", of="heads")
        if self.rotary and self.dimension // self.heads % 2:
            raise ValueError(
                f"{self.title}: rotary positions need an even number of features in a "
                f"head, got {self.dimension} / {self.heads}."
            )

    def build(
        self,
        input: Connection,
        keys: Connection | None = None,
        values: Connection | None = None,
        mask: Connection | None = None,
        position: Connection | None = None,
    ) -> Connection:
        # A connection has no truth value, so `keys or input` would raise.
        if keys is None:
            keys = input
        if values is None:
            values = keys
        size, kv_heads = self.dimension // self.heads, self.kv_heads or self.heads
        heads = {
            # Three products and not a fused one: on CPU the fused one saves nothing
            # (docs/maintainers.md), and files keep the names of torch's layers.
            name: op("unflatten", sizes=(count, size))(
                Linear(count * size, bias=self.bias, name=name)(x)
            )
            for name, x, count in (
                ("query", input, self.heads),
                ("key", keys, kv_heads),
                ("value", values, kv_heads),
            )
        }
        # Positions decide where a query looks; the values found there stay as they are.
        if self.rotary:
            rotate = RotaryPositions(base=self.rotary_base)
            for name in ("query", "key"):
                heads[name] = rotate(heads[name], start=position)
        if position is not None and self.cache_length is not None:
            cache = CachedAttention(self.cache_length, self.window, name="cache")
            attended = cache(**heads, position=position)
        else:
            attend = op("attention", causal=self.causal, window=self.window)
            attended = attend(**heads, mask=mask)
        joined = op("flatten", start=-2)(attended)
        return Linear(self.dimension, bias=self.bias, name="output")(joined)


@dataclasses.dataclass(frozen=True)
class TransformerBlock(Decoding):
    """Attention and a feed-forward network, each with a residual connection.

    The shape (batch, time, dimension) is kept. With `memory` wired, (batch, other time,
    features), a second attention between the two reads it, as in the block of a
    decoder. Masks are as in `MultiHeadAttention`.
    Vaswani et al. 2017, arXiv:1706.03762; norms in front: Xiong et al. 2020,
    arXiv:2002.04745.

    Attributes:
        dimension: features.
        heads: the number of heads; divides `dimension`.
        hidden: features inside the feed-forward network; 4 * dimension by default.
        kv_heads: the number of heads of keys and values; `heads` by default.
        activation: the op between the layers of the feed-forward network.
        gated: whether the feed-forward network is gated.
        causal: whether a position sees only itself and those before.
        norm: `"layer"` or `"rms"`.
        norm_first: whether norms are before each part (pre-norm) or after each sum.
        dropout: the rate after each part, in training.
        bias: whether Linear layers and norms have a bias.
        rotary: whether queries and keys are rotated by their position.
        epsilon: the epsilon of the norms.
        rotary_base: the base of `RotaryPositions`.
        window: how many positions a query sees, with its own; None: all before it.
        experts: the number of experts; the feed-forward network is then
            `SparseExperts`. None: one network for all tokens.
        chosen: how many experts each token goes through.
        cache_length: as in `MultiHeadAttention`.
    """

    dimension: Count
    heads: Count
    hidden: Count | None = None
    kv_heads: Count | None = None
    activation: str = "gelu"
    gated: bool = False
    causal: bool = False
    norm: Literal["layer", "rms"] = "layer"
    # Pre-norm trains without a warm-up of the learning rate (Xiong et al. 2020).
    norm_first: bool = True
    dropout: Fraction = 0.0
    bias: bool = True
    rotary: bool = False
    epsilon: Epsilon = 1e-5
    rotary_base: Positive = 10000.0
    window: Count | None = None
    experts: Count | None = None
    chosen: Count = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.attention("attention")  # checks the heads
        self.feed_forward()

    def attention(self, name: str, *, memory: bool = False) -> MultiHeadAttention:
        """An attention layer; the one over memory sees all of it, without rotation."""
        return MultiHeadAttention(
            self.dimension,
            self.heads,
            self.kv_heads,
            # An encoder's output is complete: every position may read all of it.
            causal=self.causal and not memory,
            bias=self.bias,
            # Positions in two sequences have no common origin to be relative to.
            rotary=self.rotary and not memory,
            rotary_base=self.rotary_base,
            window=None if memory else self.window,
            cache_length=self.cache_length,
            name=name,
        )

    def feed_forward(self) -> Layer:
        """The feed-forward network, or the experts in its place."""
        if self.experts is None:
            return FeedForward(
                self.dimension,
                self.hidden,
                self.activation,
                gated=self.gated,
                bias=self.bias,
                name="mlp",
            )
        return SparseExperts(
            self.experts,
            self.chosen,
            self.hidden,
            self.activation,
            gated=self.gated,
            name="mlp",
        )

    def make_norm(self, name: str) -> Layer:
        """A norm layer."""
        if self.norm == "rms":
            return RMSNorm(self.epsilon, name=name)
        return LayerNorm(self.epsilon, bias=self.bias, name=name)

    def build(
        self,
        input: Connection,
        memory: Connection | None = None,
        mask: Connection | None = None,
        memory_mask: Connection | None = None,
        position: Connection | None = None,
    ) -> Connection:
        def add_residual(
            x: Connection, part: Layer, **wires: Connection | None
        ) -> Connection:
            norm = self.make_norm(f"{part.name}_norm")
            normed = x
            if self.norm_first:
                normed = norm(x)
            residual = part(normed, **wires)
            # On the branch and not on the sum, so that the identity path stays whole.
            if self.dropout:
                residual = Dropout(self.dropout)(residual)
            if self.norm_first:
                return x + residual
            return norm(x + residual)

        wires = {"mask": mask} if position is None else {"position": position}
        x = add_residual(input, self.attention("attention"), **wires)
        if memory is not None:
            attend = self.attention("memory_attention", memory=True)
            x = add_residual(x, attend, keys=memory, mask=memory_mask)
        return add_residual(x, self.feed_forward())


@dataclasses.dataclass(frozen=True)
class TransformerEncoder(Composite):
    """A stack of equal blocks, with a final norm if the blocks are pre-norm.

    Attributes:
        block: the block.
        depth: the number of blocks.

    Example:
        >>> from frugax.models import JaxBackend, TransformerEncoder, compile
        >>> from frugax.models import TransformerBlock
        >>> encoder = TransformerEncoder(TransformerBlock(32, heads=4), depth=12)
        >>> shapes = {"input": ("batch", 10, 32)}
        >>> compiled = compile(encoder, JaxBackend(), shapes=shapes)
        >>> compiled.shapes["block_*.mlp.up.weight"]
        (12, 128, 32)
    """

    block: TransformerBlock
    depth: Natural

    def build(self, input: Connection, mask: Connection | None = None) -> Connection:
        return _stack_blocks(self.block, self.depth, input, mask=mask)


@dataclasses.dataclass(frozen=True)
class TransformerDecoder(Composite):
    """A stack of causal blocks that also read `memory`, the output of an encoder.

    Attributes:
        block: the block; it is made causal.
        depth: the number of blocks.
    """

    block: TransformerBlock
    depth: Natural

    def build(
        self,
        input: Connection,
        memory: Connection,
        mask: Connection | None = None,
        memory_mask: Connection | None = None,
    ) -> Connection:
        block = dataclasses.replace(self.block, causal=True)
        wires = {"memory": memory, "mask": mask, "memory_mask": memory_mask}
        return _stack_blocks(block, self.depth, input, **wires)


@dataclasses.dataclass(frozen=True)
class TransformerLM(Decoding):
    """A language model: int32 tokens (batch, time) to logits (..., vocabulary).

    With a `cache_length` it decodes: it reads the new tokens and `position`, the number
    of tokens before, and its caches are state. Weights have the names of the same model
    without caches, blocks one by one (`unstack_params`).

    Attributes:
        vocabulary: the number of tokens.
        block: the block; it is made causal.
        depth: the number of blocks.
        length: the length of the longest sequence; needed for learned positions.
        positions: `"learned"` or `"sinusoidal"`, added to the embeddings, or
            `"rotary"`, in each attention.
        tied: whether the last layer shares the weight of the embedding (Press & Wolf
            2017, arXiv:1608.05859).
        dropout: the rate after the embedding, in training.
        cache_length: how many positions the caches hold; needs rotary positions.

    Example:
        >>> import dataclasses, frugax as ml
        >>> from frugax.models import TransformerBlock, TransformerLM
        >>> block = TransformerBlock(16, heads=2)
        >>> model = TransformerLM(50, block, depth=2, positions="rotary")
        >>> decoder = dataclasses.replace(model, cache_length=32)
        >>> step = ml.compile(decoder, ml.JaxBackend(), shapes={"input": (1, 1)})
        >>> step.shapes["block_0.attention.cache.keys"]
        (1, 32, 2, 8)
    """

    vocabulary: Count
    block: TransformerBlock
    depth: Natural
    length: Count | None = None
    positions: Literal["learned", "sinusoidal", "rotary"] = "learned"
    tied: bool = True
    dropout: Fraction = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions == "learned" and self.length is None:
            raise ValueError(
                "TransformerLM.length must be given for learned positions: the longest "
                'sequence. Or choose positions="rotary".'
            )
        if self.cache_length is not None and self.positions != "rotary":
            raise ValueError(
                'TransformerLM.cache_length needs positions="rotary", got '
                f"{self.positions!r}: the others are added from position 0 on."
            )

    def input_keys(self) -> dict[str, IOKey]:
        return {"input": IOKey("input", dtype="int32"), **super().input_keys()}

    def build(
        self, input: Connection, position: Connection | None = None
    ) -> Connection:
        width = self.block.dimension
        vectors = Embedding(self.vocabulary, width, name="tokens")(input)
        # Not multiplied by sqrt(dimension) as in Vaswani et al., sec. 3.4: this is
        # GPT's form.
        x = vectors
        if self.positions == "learned":
            assert self.length is not None
            x = LearnedPositions(self.length, name="positions")(x)
        elif self.positions == "sinusoidal":
            x = SinusoidalPositions(name="positions")(x)
        if self.dropout:
            x = Dropout(self.dropout)(x)
        # The block states the sizes; masking and positions follow from the model.
        rotary = self.positions == "rotary"
        block = dataclasses.replace(
            self.block, causal=True, rotary=rotary, cache_length=self.cache_length
        )
        wires = {} if position is None else {"position": position}
        x = _stack_blocks(block, self.depth, x, **wires)
        # Without a bias, so that the weight can be that of the embedding.
        head = Linear(self.vocabulary, bias=False, name="head")
        if not self.tied:
            return head(x)
        return head(x, weight=weight_of(vectors))


def _stack_blocks(
    block: TransformerBlock, depth: int, x: Connection, **wires: Connection | None
) -> Connection:
    if depth:
        x = Repeat(block, depth, name="block")(x, **wires)
    if not block.norm_first:
        return x  # each block ends with a norm already
    # Pre-norm blocks only add to the sum, which would reach the head at any scale.
    return block.make_norm("norm")(x)
