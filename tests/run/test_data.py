"""Built-in data is real, split once, and batches are a function of the step."""

import numpy as np
import pytest

from frugax.run._config import DataConfig
from frugax.run._data import epoch_batches, load_images


@pytest.fixture(scope="module")
def digits():
    return load_images(DataConfig(), seed=0)


def test_all_digits_are_present_and_the_parts_share_no_image(digits):
    assert len(digits.train_x) + len(digits.test_x) == 1797
    assert digits.train_x.shape[1:] == (8, 8, 1)
    assert (digits.train_x.min(), digits.train_x.max()) == (0, 1)
    assert digits.classes == 10
    flat = np.concatenate([digits.train_x, digits.test_x]).reshape(1797, -1)
    assert len(np.unique(flat, axis=0)) == 1797


def test_mnist5k_comes_in_its_package():
    data = load_images(DataConfig(name="mnist5k", test_share=0.1), seed=0)
    assert data.train_x.shape == (4500, 28, 28, 1)
    assert (
        np.bincount(np.concatenate([data.train_y, data.test_y])).tolist() == [500] * 10
    )


def test_an_epoch_shows_each_image_once_in_a_new_order(digits):
    batch_of = epoch_batches(digits, batch=100, seed=0)
    first, second = ([batch_of(e * 14 + i)["x"] for i in range(14)] for e in (0, 1))
    flat = np.concatenate(first).reshape(1400, -1)
    assert len(np.unique(flat, axis=0)) == 1400
    assert not np.array_equal(np.concatenate(first), np.concatenate(second))


def test_batches_depend_on_the_step_only(digits):
    ahead, again = (epoch_batches(digits, batch=64, seed=3) for _ in range(2))
    wanted = [ahead(step) for step in range(60)]
    for step in (59, 3, 40, 0):
        np.testing.assert_array_equal(again(step)["x"], wanted[step]["x"])
        np.testing.assert_array_equal(again(step)["y"], wanted[step]["y"])
