"""The guide's model: scores of listed parent sets of one target for each data set."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from frugax.causal.surrogate import MAX_VARIABLES
from frugax.causal.surrogate.evidence import (
    NEVER,
    PAIR_FEATURES,
    compute_evidence,
    moments,
)
from frugax.causal.surrogate.network import (
    HEADS,
    Weights,
    attend,
    initial_weights,
    layer_norm,
    pack_weights,
    set_scores,
    unpack_lazily,
)

from ._training_batch import TrainingBatchJAX


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateTrainingConfig:
    """Sizes of the model, and how it is trained.

    Attributes:
        model: `"pairs"`, which is told statistics of pairs of variables; or `"raw"`,
            which attends to rows and variables in turns and learns far more slowly.
        model_rows: rows that the raw model looks at; of more it takes as many evenly.
        model_hidden_dim: channels of a pair of variables; a multiple of 4.
        model_n_layers: blocks of attention, >= 0.
        learning_rate: of the optimiser; reported beside the losses.
        batch_size: examples in a batch.
        max_epochs: steps on each batch in `progressive_learning`.
        weight_decay: times half the sum of squared weights is added to the loss.
        max_parent_size: parent sets are listed up to this size; the true set always.
    """

    model: str = "pairs"
    model_rows: int = 64
    model_hidden_dim: int = 32
    model_n_layers: int = 2
    learning_rate: float = 1e-3
    batch_size: int = 32
    max_epochs: int = 20
    weight_decay: float = 1e-4
    max_parent_size: int = 3

    def __post_init__(self) -> None:
        if self.model not in ("pairs", "raw"):
            raise ValueError(f"model must be 'pairs' or 'raw', got {self.model!r}.")
        if self.model_hidden_dim < 4 or self.model_hidden_dim % 4:
            raise ValueError(
                "model_hidden_dim must be a multiple of 4, got "
                f"{self.model_hidden_dim}."
            )
        for name, least in (
            ("model_n_layers", 0),
            ("batch_size", 1),
            ("model_rows", 1),
            ("max_epochs", 1),
            ("max_parent_size", 0),
            ("weight_decay", 0),
        ):
            if not getattr(self, name) >= least:
                raise ValueError(
                    f"{name} must be >= {least}, got {getattr(self, name)!r}."
                )
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be > 0, got {self.learning_rate!r}.")


def initial_raw_weights(seed: int, hidden: int, blocks: int) -> Weights:
    """Draw the weights before training: small parent sets are the likely ones.

    Args:
        seed: of the draw.
        hidden: channels of a value, a multiple of 4.
        blocks: how often values look at each other.
    """
    assert hidden % HEADS == 0  # the config has seen to it
    rng = np.random.default_rng(seed)

    def dense(*shape: int, gain: float = 1.0) -> np.ndarray:
        scale = np.float32(gain / shape[-2] ** 0.5)
        return rng.standard_normal(shape, np.float32) * scale

    return {
        "embed": dense(4, hidden),
        "qkv": dense(blocks, 2, hidden, 3 * hidden),
        # Small gains where a block adds to the residual stream, so that blocks start
        # close to the identity.
        "out": dense(blocks, 2, hidden, hidden, gain=0.3),
        "inner": dense(blocks, 2, hidden, 2 * hidden),
        "outer": dense(blocks, 2, 2 * hidden, hidden, gain=0.3),
        "norms": np.ones((blocks, 2, 2, hidden), np.float32),
        "norm": np.ones(hidden, np.float32),
        "parent": dense(hidden, hidden),
        "child": dense(hidden, hidden, gain=0.1),
        # Below 0, because most variables are not parents: an edge has about the odds
        # 0.3 at the start.
        "bias": np.full(1, -1.2, np.float32),
    }


def raw_scores(weights: Weights, rows: Any, mask: Any, target: Any, inside: Any) -> Any:
    """Scores of listed parent sets of one target in each data set [batch, k].

    Args:
        weights: of the network.
        rows: value, whether it was set, whether it is the target's, whether it is there
            [batch, rows, width, 4].
        mask: 1 for variables that are there [batch, width].
        target: 1 for the target, else 0 [batch, width].
        inside: 1 for the variables in each set [batch, k, width].
    """
    seen = rows[..., 3].max(2)  # rows that are there
    # A large negative number and not -inf: a row with everything hidden would give NaN
    # in the softmax.
    hide = [(1 - of)[:, None, None, :] * -1e9 for of in (mask, seen)]
    x = rows @ weights["embed"]

    def look(x: Any, w: Weights, axis: int) -> Any:
        """Values look along their row (0) or their column (1), then each at itself."""
        y = layer_norm(x, w["norms"][axis, 0], jnp)
        x = x + attend(y, w["qkv"][axis], hide[axis], jnp) @ w["out"][axis]
        y = layer_norm(x, w["norms"][axis, 1], jnp) @ w["inner"][axis]
        x = x + jax.nn.relu(y) @ w["outer"][axis]
        # Rows and columns change places after each look, so both directions run the
        # same code.
        return jnp.swapaxes(x, 1, 2)

    def block(x: Any, w: Weights) -> tuple[Any, None]:
        return look(look(x, w, 0), w, 1), None

    blocks = {name: weights[name] for name in ("qkv", "out", "inner", "outer", "norms")}
    # One compiled block for any depth. Inside a scan XLA cannot merge a recomputation
    # with the forward pass, so prevent_cse is not needed.
    x, _ = jax.lax.scan(jax.checkpoint(block, prevent_cse=False), x, blocks)
    x = layer_norm(x, weights["norm"], jnp)
    there = seen[:, :, None, None] > 0
    # The mean over rows forgets their order and number, as rows are exchangeable.
    x = jnp.where(there, x, 0.0).sum(1) / jnp.maximum(seen.sum(1), 1.0)[:, None, None]
    child = target[:, None] @ x @ weights["child"]
    edge = ((x @ weights["parent"]) * child).sum(-1) + weights["bias"][None]
    return (inside @ edge[:, :, None])[..., 0]


# A named tuple is a pytree by itself, so a batch passes through jit as it is.
class Told(NamedTuple):
    """A batch as the compiled step meets it: arrays of fixed shape, no names.

    Attributes:
        pairs: features of pairs [batch, 12, 12, features].
        mask: variables that are there [batch, 12].
        target: 1 for the target [batch, 12].
        posteriors: log-posterior of each listed set under two simple models
            [batch, k, 2].
        inside: variables in each listed set [batch, k, 12].
        listed: 1 for sets, 0 for padding [batch, k].
        rows: the data, for the raw model only [batch, rows, 12, 4].
    """

    pairs: Any
    mask: Any
    target: Any
    posteriors: Any
    inside: Any
    listed: Any
    rows: Any


def tell(
    parent_sets: Sequence[Sequence[frozenset[str]]],
    variable_orders: Sequence[Sequence[str]],
    target_variables: Sequence[str],
    observational_data: Any,
    k: int,
    config: SurrogateTrainingConfig,
) -> Told:
    """Everything that is known of a batch before any weight is used, in NumPy.

    Args:
        parent_sets: of each example.
        variable_orders: names of each example's variables.
        target_variables: of each example.
        observational_data: [batch, n, d, 4].
        k: how many sets arrays have room for.
        config: which model it is for.

    Raises:
        ValueError: an example has more than 12 variables, or names do not fit together.
    """
    data = np.asarray(observational_data, np.float32)
    batch = len(target_variables)
    if data.ndim != 4 or len(data) != batch or data.shape[3] != 4:
        raise ValueError(
            f"observational_data has shape {data.shape} for {batch} targets: it must "
            "be [batch, rows, variables, 4]; see convert_to_jax_batch."
        )
    raw = config.model == "raw"
    count = config.model_rows if raw else 0
    told = Told(
        pairs=np.zeros(
            (batch, MAX_VARIABLES, MAX_VARIABLES, PAIR_FEATURES), np.float32
        ),
        mask=np.zeros((batch, MAX_VARIABLES), np.float32),
        target=np.zeros((batch, MAX_VARIABLES), np.float32),
        posteriors=np.zeros((batch, k, 2), np.float32),
        inside=np.zeros((batch, k, MAX_VARIABLES), np.float32),
        listed=np.zeros((batch, k), np.float32),
        rows=np.zeros((batch, count, MAX_VARIABLES, 4), np.float32),
    )
    # Examples of one width share one vectorised computation of the evidence.
    for width in sorted({len(order) for order in variable_orders}):
        if not 2 <= width <= MAX_VARIABLES:
            raise ValueError(
                f"an example has {width} variables; it may have 2 to "
                f"{MAX_VARIABLES}: `select` those that matter."
            )
        mine = [i for i, order in enumerate(variable_orders) if len(order) == width]
        value, was_set, _, present = np.moveaxis(data[mine, :, :width], 3, 0)
        mask = np.ones((len(mine), width), np.float32)
        found = (
            None if raw else compute_evidence(moments(value, was_set, present), mask)
        )
        if found is not None:
            told.pairs[mine, :width, :width] = found.pairs
        told.mask[mine, :width] = 1
        for row, i in enumerate(mine):
            inside = _inside(parent_sets[i], variable_orders[i], target_variables[i])
            target = list(variable_orders[i]).index(target_variables[i])
            others = np.delete(inside, target, axis=1).astype(int)
            # The posterior of a target is a table over all sets of the others, indexed
            # by bits.
            code = (others << np.arange(width - 1)).sum(1)
            sets = len(code)
            told.target[i, target] = 1
            told.inside[i, :sets, :width] = inside
            told.listed[i, :sets] = 1
            if found is None:
                told.rows[i, :, :width] = _some_rows(data[i, :, :width], count)
            else:
                told.posteriors[i, :sets, 0] = found.linear[row, target, code]
                told.posteriors[i, :sets, 1] = found.curved[row, target, code]
    return told


def _some_rows(data: np.ndarray, count: int) -> np.ndarray:
    """As many rows as there is room for, values standardised [count, d, 4]."""
    data = data[data[:, :, 3].max(1) > 0]
    if len(data) > count:
        # Evenly and not the first ones, because rows are often ordered, such as
        # interventions last.
        data = data[np.linspace(0, len(data) - 1, count).astype(int)]
    present = data[:, :, 3]
    mean = (data[:, :, 0] * present).sum(0) / np.maximum(present.sum(0), 1)
    apart = (data[:, :, 0] - mean) * present
    spread = np.sqrt((apart**2).sum(0) / np.maximum(present.sum(0), 1))
    found = np.zeros((count, *data.shape[1:]), np.float32)
    found[: len(data)] = data
    # A share of the largest value: an absolute bound would depend on the unit.
    least = 1e-9 * np.abs(data[:, :, 0] * present).max(0)
    found[: len(data), :, 0] = apart / np.where(spread > least, spread, 1)
    return found


def _inside(
    sets: Sequence[frozenset[str]], order: Sequence[str], target: str
) -> np.ndarray:
    """Whether each variable is in each set [sets, variables]."""
    place = {name: i for i, name in enumerate(order)}
    if target not in place:
        raise ValueError(f"target {target!r} is not among {list(order)!r:.200}.")
    inside = np.zeros((len(sets), len(order)), np.float32)
    for row, names in enumerate(sets):
        for name in names:
            if name not in place or name == target:
                raise ValueError(
                    f"{name!r} cannot be a parent of {target!r}: the variables are "
                    f"{list(order)!r:.200}."
                )
            inside[row, place[name]] = 1
    return inside


@dataclasses.dataclass(frozen=True)
class ParentSetModel:
    """Scores parent sets; its weights are a dict of arrays.

    Attributes:
        config: sizes.
    """

    config: SurrogateTrainingConfig

    def init(self, key: Any, batch: TrainingBatchJAX | None = None) -> Weights:
        """Weights before training; the same for every batch.

        Args:
            key: a JAX random key.
            batch: not looked at, as no weight depends on a size of the data.
        """
        del batch
        # NumPy draws the weights, since JAX would compile a program for each shape.
        seed = int(jax.random.bits(key, (), jnp.uint32))
        config = self.config
        sizes = (config.model_hidden_dim, config.model_n_layers)
        if config.model == "raw":
            weights = initial_raw_weights(seed, *sizes)
            return {name: jnp.asarray(x) for name, x in weights.items()}
        # All in one row: else the optimiser's part is the longest to compile.
        return {"row": jnp.asarray(pack_weights(initial_weights(seed, *sizes)))}

    def apply(self, params: Weights, batch: TrainingBatchJAX) -> Mapping[str, Any]:
        """Scores of the batch's parent sets.

        Args:
            params: from `init`, or trained.
            batch: from `convert_to_jax_batch`.

        Returns:
            `"parent_set_logits"` [batch, k], about -1e9 where the list of an example
            is shorter, and `"parent_sets"`, the lists.
        """
        k = batch.expert_probs.shape[1]
        told = tell(
            batch.parent_sets,
            batch.variable_orders,
            batch.target_variables,
            batch.observational_data,
            k,
            self.config,
        )
        return {
            "parent_set_logits": scores_of(params, told, self.config),
            "parent_sets": batch.parent_sets,
        }


def scores_of(params: Weights, told: Told, config: SurrogateTrainingConfig) -> Any:
    """Scores of listed parent sets [batch, k]; traced by JAX."""
    if config.model == "raw":
        logits = raw_scores(params, told.rows, told.mask, told.target, told.inside)
    else:
        # For the shapes alone, which the packed row does not have; the values are not
        # used.
        like = initial_weights(0, config.model_hidden_dim, config.model_n_layers)
        weights = unpack_lazily(params["row"], like, jnp)
        of_sets = (told.target, told.inside, told.posteriors)
        logits = set_scores(weights, told.pairs, told.mask, *of_sets, jnp)
    # Padding gets no probability, so the losses need no mask.
    return jnp.where(told.listed > 0, logits, NEVER)


def create_parent_set_model(
    config: SurrogateTrainingConfig | Mapping[str, Any] | None = None,
    max_parent_size: int | None = None,
) -> ParentSetModel:
    """A model to train.

    Args:
        config: its sizes; or some of the options of `SurrogateTrainingConfig`.
        max_parent_size: in place of the one in `config`.
    """
    if config is None or isinstance(config, Mapping):
        config = SurrogateTrainingConfig(**(config or {}))
    if max_parent_size is not None:
        config = dataclasses.replace(config, max_parent_size=max_parent_size)
    return ParentSetModel(config)
