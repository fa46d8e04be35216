"""Layers that bring features to a common scale; channels are the last axis.

A weight starts at 1 and a bias at 0, so a fresh layer only normalises.
"""

import dataclasses
from typing import Any

from frugax.models.graph import Fill, Primitive, Shape, Weight, require_static

from ._settings import check_fraction, check_integer, check_positive


@dataclasses.dataclass(frozen=True)
class _Norm(Primitive):
    def attrs(self) -> dict[str, Any]:
        own = {"name", "affine", "bias"}
        fields = dataclasses.fields(self)
        return {f.name: getattr(self, f.name) for f in fields if f.name not in own}


def _affine(input: Shape, *, weight: bool, bias: bool) -> dict[str, Weight]:
    if not input:
        raise ValueError("it needs at least one axis")
    features = require_static(input[-1])
    found: dict[str, Weight] = {}
    if weight:
        found["weight"] = Weight((features,), Fill(1))
    if weight and bias:
        found["bias"] = Weight((features,), Fill(0))
    return found


@dataclasses.dataclass(frozen=True)
class LayerNorm(_Norm):
    """Mean 0 and variance 1 along the last axis, times weight plus bias.

    Ba, Kiros & Hinton 2016, arXiv:1607.06450.

    Attributes:
        epsilon: added to the variance.
        affine: whether there is a weight (and a bias).
        bias: whether there is a bias where there is a weight.
    """

    epsilon: float = 1e-5
    affine: bool = True
    bias: bool = True

    op = "layer_norm"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "epsilon")

    def weights(self, input: Shape) -> dict[str, Weight]:
        return _affine(input, weight=self.affine, bias=self.bias)


@dataclasses.dataclass(frozen=True)
class RMSNorm(_Norm):
    """Mean square 1 along the last axis, times weight.

    Zhang & Sennrich 2019, arXiv:1910.07467.

    Attributes:
        epsilon: added to the mean square.
        affine: whether there is a weight.
    """

    epsilon: float = 1e-6
    affine: bool = True

    op = "rms_norm"
    weight_names = frozenset({"weight"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "epsilon")

    def weights(self, input: Shape) -> dict[str, Weight]:
        return _affine(input, weight=self.affine, bias=False)


@dataclasses.dataclass(frozen=True)
class GroupNorm(_Norm):
    """Mean 0 and variance 1 of each group of channels of each example.

    (batch, *space, channels); Wu & He 2018, arXiv:1803.08494.

    Attributes:
        groups: how many; must divide the channels.
        epsilon: added to the variance.
        affine: whether each channel has a weight and a bias.
    """

    groups: int
    epsilon: float = 1e-5
    affine: bool = True

    op = "group_norm"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "groups")
        check_positive(self, "epsilon")

    def weights(self, input: Shape) -> dict[str, Weight]:
        if input and require_static(input[-1]) % self.groups:
            raise ValueError(
                f"groups={self.groups} must divide its {input[-1]} channels"
            )
        return _affine(input, weight=self.affine, bias=True)


@dataclasses.dataclass(frozen=True)
class InstanceNorm(_Norm):
    """Mean 0 and variance 1 of each channel of each example, over space.

    (batch, *space, channels); Ulyanov et al. 2016, arXiv:1607.08022.

    Attributes:
        epsilon: added to the variance.
        affine: whether each channel has a weight and a bias.
    """

    epsilon: float = 1e-5
    affine: bool = True

    op = "instance_norm"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "epsilon")

    def weights(self, input: Shape) -> dict[str, Weight]:
        if len(input) < 3:
            raise ValueError("it needs (batch, *space, channels), at least 3 axes")
        return _affine(input, weight=self.affine, bias=True)


@dataclasses.dataclass(frozen=True)
class BatchNorm(_Norm):
    """Mean 0 and variance 1 of each channel, over the batch and space.

    (batch, *space, channels); Ioffe & Szegedy 2015, arXiv:1502.03167. Its running
    statistics are state: they go in with the data as `running_mean` and `running_var`,
    come out renewed under the same keys, and are what counts once the model is
    compiled with `inference=True`.

    Attributes:
        momentum: share by which the statistics move to those of a batch; in [0, 1].
        epsilon: added to the variance.
        affine: whether each channel has a weight and a bias.
        inference: use the running statistics, and leave them.

    Example:
        >>> from frugax.models import BatchNorm, JaxBackend, compile
        >>> backend = JaxBackend()
        >>> norm = compile(BatchNorm(), backend, shapes={"input": (4, 2)})
        >>> state = norm.initial_state()
        >>> x = backend.ones(4, 2)
        >>> outputs = norm.evaluate(norm.randomize_params(), {"input": x, **state})
        >>> sorted(outputs)
        ['output', 'running_mean', 'running_var']
        >>> state = {key: outputs[key] for key in state}
        >>> [round(float(mean), 3) for mean in state["running_mean"]]
        [0.1, 0.1]
    """

    momentum: float = 0.1
    epsilon: float = 1e-5
    affine: bool = True
    inference: bool = False

    op = "batch_norm"
    weight_names = frozenset({"weight", "bias", "running_mean", "running_var"})
    output_ports = ("output", "new_running_mean", "new_running_var")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction(self, "momentum")
        check_positive(self, "epsilon")

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.output_ports[:1] if self.inference else self.output_ports

    def weights(self, input: Shape) -> dict[str, Weight]:
        affine = _affine(input, weight=self.affine, bias=True)
        channels = (require_static(input[-1]),)
        return {
            "running_mean": Weight(channels, Fill(0), kind="state"),
            "running_var": Weight(channels, Fill(1), kind="state"),
            **affine,
        }

    def inference_layer(self) -> "BatchNorm":
        return dataclasses.replace(self, inference=True)
