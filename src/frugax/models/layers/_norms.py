"""Normalisation layers (layer, RMS, group, batch ...); channels are the last axis.

A weight starts at 1 and a bias at 0, so an untrained layer only normalises.
"""

import dataclasses

from frugax.models.graph import Fill, Shape, Weight, require_static
from frugax.models.ops import Count, Epsilon, Fraction

from ._field_op import FieldOp


@dataclasses.dataclass(frozen=True)
class _Norm(FieldOp):
    # These decide which weights there are; the op sees them by their presence.
    own_fields = frozenset({"affine", "bias"})


def _affine_weights(input: Shape, *, weight: bool, bias: bool) -> dict[str, Weight]:
    if not input:
        raise ValueError("it needs at least one axis")
    features = require_static(input[-1])
    found: dict[str, Weight] = {}
    if weight:
        # Not random: the layers around it break the symmetry between features.
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

    # torch's default. A checkpoint fixes its own: BERT's is 1e-12.
    epsilon: Epsilon = 1e-5
    affine: bool = True
    bias: bool = True

    op = "layer_norm"

    def weights(self, input: Shape) -> dict[str, Weight]:
        return _affine_weights(input, weight=self.affine, bias=self.bias)


@dataclasses.dataclass(frozen=True)
class RMSNorm(_Norm):
    """Mean square 1 along the last axis, times weight.

    Zhang & Sennrich 2019, arXiv:1910.07467.

    Attributes:
        epsilon: added to the mean square.
        affine: whether there is a weight.
    """

    # The first Llama's; Llama 2 has 1e-5.
    epsilon: Epsilon = 1e-6
    affine: bool = True

    op = "rms_norm"
    weight_names = frozenset({"weight"})

    def weights(self, input: Shape) -> dict[str, Weight]:
        return _affine_weights(input, weight=self.affine, bias=False)


@dataclasses.dataclass(frozen=True)
class GroupNorm(_Norm):
    """Mean 0 and variance 1 of each group of channels of each example.

    (batch, *space, channels); Wu & He 2018, arXiv:1803.08494.

    Attributes:
        groups: the number of groups; must divide the channels.
        epsilon: added to the variance.
        affine: whether each channel has a weight and a bias.
    """

    groups: Count
    epsilon: Epsilon = 1e-5
    affine: bool = True

    op = "group_norm"

    def weights(self, input: Shape) -> dict[str, Weight]:
        if input and require_static(input[-1]) % self.groups:
            raise ValueError(
                f"groups={self.groups} must divide its {input[-1]} channels"
            )
        return _affine_weights(input, weight=self.affine, bias=True)


@dataclasses.dataclass(frozen=True)
class InstanceNorm(_Norm):
    """Mean 0 and variance 1 of each channel of each example, over space.

    (batch, *space, channels); Ulyanov et al. 2016, arXiv:1607.08022.

    Attributes:
        epsilon: added to the variance.
        affine: whether each channel has a weight and a bias.
    """

    epsilon: Epsilon = 1e-5
    affine: bool = True

    op = "instance_norm"

    def weights(self, input: Shape) -> dict[str, Weight]:
        # Without space the mean is of one number, and every output would be the bias.
        if len(input) < 3:
            raise ValueError("it needs (batch, *space, channels), at least 3 axes")
        return _affine_weights(input, weight=self.affine, bias=True)


@dataclasses.dataclass(frozen=True)
class BatchNorm(_Norm):
    """Mean 0 and variance 1 of each channel, over the batch and space.

    (batch, *space, channels); Ioffe & Szegedy 2015, arXiv:1502.03167. Its running
    statistics are state: they go in with the data as `running_mean` and `running_var`,
    come out updated under the same keys, and replace the statistics of the batch in a
    model that is compiled with `inference=True`.

    Attributes:
        momentum: the share of a batch in the running statistics; in [0, 1].
        epsilon: added to the variance.
        affine: whether each channel has a weight and a bias.
        inference: use the running statistics, and do not update them.

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

    # The share of the new batch, as in torch; Keras and flax state that of the old.
    momentum: Fraction = 0.1
    epsilon: Epsilon = 1e-5
    affine: bool = True
    inference: bool = False

    op = "batch_norm"
    weight_names = frozenset({"weight", "bias", "running_mean", "running_var"})
    output_ports = ("output", "new_running_mean", "new_running_var")

    @property
    def outputs(self) -> tuple[str, ...]:
        if self.inference:
            return self.output_ports[:1]
        return self.output_ports

    def weights(self, input: Shape) -> dict[str, Weight]:
        affine = _affine_weights(input, weight=self.affine, bias=True)
        channels = (require_static(input[-1]),)
        # Of kind "state": no gradient is taken, and updates come out of `evaluate`.
        return {
            # With these an untrained norm is nearly the identity at inference.
            "running_mean": Weight(channels, Fill(0), kind="state"),
            "running_var": Weight(channels, Fill(1), kind="state"),
            **affine,
        }

    def inference_layer(self) -> "BatchNorm":
        return dataclasses.replace(self, inference=True)
