"""How a surrogate is trained: the guide's options, with the guide's names."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateTrainingConfig:
    """Sizes of the model, and how it is trained.

    Attributes:
        model: `"pairs"`, which is told statistics of pairs of variables; or `"raw"`,
            which attends to rows and variables in turns and learns far more slowly.
        model_rows: rows that the raw model looks at; of more it takes as many evenly.
        model_hidden_dim: channels of a pair of variables; a multiple of 4.
        model_n_layers: blocks of attention, >= 0.
        learning_rate: what the optimiser was made with; reported beside the losses.
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
