"""Layers that are one op of the table: activations, losses, metrics, pools, positions.

`help(Huber)`, and its op, say what a layer computes and what its settings are. Losses
and metrics have the ports `input` and `target`.
"""

from ._field_op import layer_of

# --- activations ------------------------------------------------------------------

Relu = layer_of("relu", "Relu")
Relu6 = layer_of("relu6", "Relu6")
LeakyRelu = layer_of("leaky_relu", "LeakyRelu")
Elu = layer_of("elu", "Elu")
Celu = layer_of("celu", "Celu")
Selu = layer_of("selu", "Selu")
Silu = layer_of("silu", "Silu")
Swish = layer_of("swish", "Swish")
Gelu = layer_of("gelu", "Gelu")
Mish = layer_of("mish", "Mish")
Sigmoid = layer_of("sigmoid", "Sigmoid")
LogSigmoid = layer_of("log_sigmoid", "LogSigmoid")
HardSigmoid = layer_of("hard_sigmoid", "HardSigmoid")
HardSwish = layer_of("hard_swish", "HardSwish")
Tanh = layer_of("tanh", "Tanh")
HardTanh = layer_of("hard_tanh", "HardTanh")
Softplus = layer_of("softplus", "Softplus")
Softsign = layer_of("softsign", "Softsign")
Softmax = layer_of("softmax", "Softmax")
LogSoftmax = layer_of("log_softmax", "LogSoftmax")
Glu = layer_of("glu", "Glu")

# --- losses -----------------------------------------------------------------------

_BOTH = ("input", "target")
# An input key of a model would otherwise take the float dtype of the backend.
_CLASSES = {"target": "int32"}

MSE = layer_of("mse", "MSE")
MAE = layer_of("mae", "MAE")
Huber = layer_of("huber", "Huber")
CrossEntropy = layer_of("cross_entropy", "CrossEntropy", integers=_CLASSES)
NegativeLogLikelihood = layer_of("nll", "NegativeLogLikelihood", integers=_CLASSES)
BinaryCrossEntropy = layer_of("binary_cross_entropy", "BinaryCrossEntropy")
KLDivergence = layer_of("kl_divergence", "KLDivergence", ports=_BOTH)
Hinge = layer_of("hinge", "Hinge", ports=_BOTH)
CosineDistance = layer_of("cosine_distance", "CosineDistance")

# --- metrics ----------------------------------------------------------------------

Accuracy = layer_of("accuracy", "Accuracy", ports=_BOTH, integers=_CLASSES)
TopKAccuracy = layer_of(
    "top_k_accuracy", "TopKAccuracy", ports=_BOTH, integers=_CLASSES
)
Perplexity = layer_of("perplexity", "Perplexity", ports=_BOTH, integers=_CLASSES)
Precision = layer_of("precision", "Precision", ports=_BOTH)
Recall = layer_of("recall", "Recall", ports=_BOTH)
F1 = layer_of("f1", "F1", ports=_BOTH)
R2 = layer_of("r2", "R2")

# --- pools and sizes --------------------------------------------------------------

MaxPool1D = layer_of("max_pool1d", "MaxPool1D", window=2)
MaxPool2D = layer_of("max_pool2d", "MaxPool2D", window=2)
AvgPool1D = layer_of("avg_pool1d", "AvgPool1D", window=2)
AvgPool2D = layer_of("avg_pool2d", "AvgPool2D", window=2)
GlobalAvgPool = layer_of("global_avg_pool", "GlobalAvgPool")
GlobalMaxPool = layer_of("global_max_pool", "GlobalMaxPool")
Upsample = layer_of("upsample", "Upsample")

# --- positions --------------------------------------------------------------------

SinusoidalPositions = layer_of("sinusoidal_positions", "SinusoidalPositions")
RotaryPositions = layer_of(
    "rotary_positions",
    "RotaryPositions",
    integers={"positions": "int32", "start": "int32"},
)
