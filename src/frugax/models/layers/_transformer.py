"""Transformer blocks, rows of them, and a language model.

All data is (batch, time, features). Equal blocks in a row compile as one loop.
"""

import dataclasses
from typing import Literal

from frugax.models.graph import Composite, Connection, IOKey, Layer, weight_of

from ._attention import MultiHeadAttention
from ._dropout import Dropout
from ._embeddings import Embedding, LearnedPositions, SinusoidalPositions
from ._linear import FeedForward, Linear
from ._norms import LayerNorm, RMSNorm
from ._settings import check_choice, check_fraction, check_integer, check_positive


@dataclasses.dataclass(frozen=True)
class TransformerBlock(Composite):
    """Attention, then a feed-forward, each around a short cut.

    (batch, time, dimension) stays that. With `memory` wired, (batch, other time,
    features), a second attention between them reads it: a decoder's block. Masks are
    as in `MultiHeadAttention`.
    Vaswani et al. 2017, arXiv:1706.03762; norms in front: Xiong et al. 2020,
    arXiv:2002.04745.

    Attributes:
        dimension: features.
        heads: of the attention; divides `dimension`.
        hidden: features inside the feed-forward; 4 * dimension if not given.
        kv_heads: heads of keys and values; as many as `heads` if not given.
        activation: of the feed-forward, an op's name.
        gated: whether the feed-forward is gated.
        causal: whether a time sees only itself and those before.
        norm: `"layer"` or `"rms"`.
        norm_first: norms in front of each part (pre-norm), else behind each sum.
        dropout: rate behind each part, in training.
        bias: whether Linear layers and norms have a bias.
        rotary: whether queries and keys are turned by their position.
        epsilon: of the norms.
    """

    dimension: int
    heads: int
    hidden: int | None = None
    kv_heads: int | None = None
    activation: str = "gelu"
    gated: bool = False
    causal: bool = False
    norm: Literal["layer", "rms"] = "layer"
    norm_first: bool = True
    dropout: float = 0.0
    bias: bool = True
    rotary: bool = False
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "hidden")
        check_positive(self, "epsilon")
        check_choice(self, "norm", ("layer", "rms"))
        check_fraction(self, "dropout")
        self.attention("attention")  # which checks the heads

    def attention(self, name: str, *, memory: bool = False) -> MultiHeadAttention:
        """One of its attentions; that over memory sees all of it, unturned."""
        return MultiHeadAttention(
            self.dimension,
            self.heads,
            self.kv_heads,
            causal=self.causal and not memory,
            bias=self.bias,
            rotary=self.rotary and not memory,
            name=name,
        )

    def make_norm(self, name: str) -> Layer:
        """One of its norms."""
        if self.norm == "rms":
            return RMSNorm(self.epsilon, name=name)
        return LayerNorm(self.epsilon, bias=self.bias, name=name)

    def build(
        self,
        input: Connection,
        memory: Connection | None = None,
        mask: Connection | None = None,
        memory_mask: Connection | None = None,
    ) -> Connection:
        def around(
            x: Connection, part: Layer, **wires: Connection | None
        ) -> Connection:
            norm = self.make_norm(f"{part.name}_norm")
            made = part(norm(x) if self.norm_first else x, **wires)
            if self.dropout:
                made = Dropout(self.dropout)(made)
            return x + made if self.norm_first else norm(x + made)

        x = around(input, self.attention("attention"), mask=mask)
        if memory is not None:
            look = self.attention("memory_attention", memory=True)
            x = around(x, look, keys=memory, mask=memory_mask)
        feed = FeedForward(
            self.dimension,
            self.hidden,
            self.activation,
            gated=self.gated,
            bias=self.bias,
            name="mlp",
        )
        return around(x, feed)


@dataclasses.dataclass(frozen=True)
class TransformerEncoder(Composite):
    """Equal blocks in a row, and a norm at the end if they have theirs in front.

    Attributes:
        block: what each of them is.
        depth: how many.

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
    depth: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "depth", least=0)

    def build(self, input: Connection, mask: Connection | None = None) -> Connection:
        return _in_a_row(self.block, self.depth, input, mask=mask)


@dataclasses.dataclass(frozen=True)
class TransformerDecoder(Composite):
    """Causal blocks in a row that also read `memory`, what an encoder gave.

    Attributes:
        block: what each of them is; made causal.
        depth: how many.
    """

    block: TransformerBlock
    depth: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "depth", least=0)

    def build(
        self,
        input: Connection,
        memory: Connection,
        mask: Connection | None = None,
        memory_mask: Connection | None = None,
    ) -> Connection:
        block = dataclasses.replace(self.block, causal=True)
        wires = {"memory": memory, "mask": mask, "memory_mask": memory_mask}
        return _in_a_row(block, self.depth, input, **wires)


@dataclasses.dataclass(frozen=True)
class TransformerLM(Composite):
    """A language model: int32 tokens (batch, time) to logits (..., vocabulary).

    Attributes:
        vocabulary: how many tokens there are.
        block: what each block is; made causal.
        depth: how many blocks.
        length: the longest sequence; needed for learned positions.
        positions: `"learned"` or `"sinusoidal"`, added at the start, or `"rotary"`, in
            each attention.
        tied: whether the last layer's weight is the tokens' vectors (Press & Wolf 2017,
            arXiv:1608.05859).
        dropout: rate behind the tokens' vectors, in training.
    """

    vocabulary: int
    block: TransformerBlock
    depth: int
    length: int | None = None
    positions: Literal["learned", "sinusoidal", "rotary"] = "learned"
    tied: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "vocabulary", "length")
        check_integer(self, "depth", least=0)
        check_choice(self, "positions", ("learned", "sinusoidal", "rotary"))
        check_fraction(self, "dropout")
        if self.positions == "learned" and self.length is None:
            raise ValueError(
                "TransformerLM.length must be given for learned positions: the longest "
                'sequence. Or choose positions="rotary".'
            )

    def input_keys(self) -> dict[str, IOKey]:
        return {"input": IOKey("input", dtype="int32")}

    def build(self, input: Connection) -> Connection:
        width = self.block.dimension
        vectors = Embedding(self.vocabulary, width, name="tokens")(input)
        x = vectors
        if self.positions == "learned":
            assert self.length is not None
            x = LearnedPositions(self.length, name="positions")(x)
        elif self.positions == "sinusoidal":
            x = SinusoidalPositions(name="positions")(x)
        if self.dropout:
            x = Dropout(self.dropout)(x)
        rotary = self.positions == "rotary"
        block = dataclasses.replace(self.block, causal=True, rotary=rotary)
        x = _in_a_row(block, self.depth, x)
        head = Linear(self.vocabulary, bias=False, name="head")
        return head(x, weight=weight_of(vectors)) if self.tied else head(x)


def _in_a_row(
    block: TransformerBlock, depth: int, x: Connection, **wires: Connection | None
) -> Connection:
    for i in range(depth):
        x = dataclasses.replace(block, name=f"block_{i}")(x, **wires)
    return block.make_norm("norm")(x) if block.norm_first else x
