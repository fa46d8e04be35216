"""Attention with its four products."""

import dataclasses

from frugax.models.graph import Composite, Connection, op

from ._embeddings import RotaryPositions
from ._linear import Linear
from ._settings import check_divides, check_integer, check_positive


@dataclasses.dataclass(frozen=True)
class MultiHeadAttention(Composite):
    """Each time takes a mean of the values of others, weighted by how well they match.

    `input` is (batch, time, features); out comes (batch, time, dimension). Keys and
    values are made of `input` too, or of `keys` and `values` if these are wired:
    (batch, other time, features); `values` is `keys` if not wired. `mask` broadcasts to
    (batch, heads, time, other time): boolean, True where it may look, or numbers that
    are added. Its layers are `query`, `key`, `value` and `output`.
    Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.2.

    Attributes:
        dimension: features of all heads together.
        heads: how many means are taken side by side; divides `dimension`.
        kv_heads: heads of keys and values, each shared by neighbouring heads; divides
            `heads`; as many if not given (Ainslie et al. 2023, arXiv:2305.13245).
        causal: whether a time sees only itself and those before.
        bias: whether the products have a bias.
        rotary: whether queries and keys are turned by `RotaryPositions`.
        rotary_base: their base.

    Example:
        >>> from frugax.models import JaxBackend, MultiHeadAttention, compile
        >>> attention = MultiHeadAttention(64, heads=8, kv_heads=2, causal=True)
        >>> shapes = {"input": ("batch", 16, 64)}
        >>> compiled = compile(attention, JaxBackend(), shapes=shapes)
        >>> compiled.shapes["key.weight"]
        (16, 64)
    """

    dimension: int
    heads: int
    kv_heads: int | None = None
    causal: bool = False
    bias: bool = True
    rotary: bool = False
    rotary_base: float = 10000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "dimension", "heads", "kv_heads")
        check_divides(self, "heads", of="dimension")
        check_divides(self, "kv_heads", of="heads")
        check_positive(self, "rotary_base")
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
    ) -> Connection:
        keys = input if keys is None else keys
        values = keys if values is None else values
        size, kv_heads = self.dimension // self.heads, self.kv_heads or self.heads
        made = {
            name: op("unflatten", sizes=(count, size))(
                Linear(count * size, bias=self.bias, name=name)(x)
            )
            for name, x, count in (
                ("query", input, self.heads),
                ("key", keys, kv_heads),
                ("value", values, kv_heads),
            )
        }
        if self.rotary:
            turn = RotaryPositions(base=self.rotary_base)
            made["query"], made["key"] = turn(made["query"]), turn(made["key"])
        seen = op("attention", causal=self.causal)(**made, mask=mask)
        joined = op("flatten", start=-2)(seen)
        return Linear(self.dimension, bias=self.bias, name="output")(joined)
