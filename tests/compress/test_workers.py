"""Files that several threads code."""

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from frugax import SizeBudget, compress
from refusals import refuses

pytestmark = pytest.mark.filterwarnings("ignore:these tensors have NaN")


@pytest.fixture(scope="module")
def tree():
    rng = np.random.default_rng(0)
    return {
        "half": rng.normal(size=(60, 400)).astype(ml_dtypes.bfloat16),
        "whole": rng.normal(size=(60, 400)).astype("f4"),
        "small": [rng.normal(size=(20, 30)), np.arange(5), rng.normal(size=70)],
        "nan": np.full((40, 40), np.nan, "f4"),
    }


@pytest.fixture(scope="module")
def plan(tree):
    return compress.plan(tree, SizeBudget("6x"))


@pytest.fixture(scope="module")
def one_thread(tree, plan):
    return bytes(compress.compress(tree, plan))


@pytest.fixture
def small_batches(monkeypatch):
    """Code tensors of 5,000 numbers by themselves, as large ones are."""
    monkeypatch.setattr("frugax.compress.search._encode.BLOCK", 5000)


def test_two_threads_write_the_file_of_one(tree, plan, one_thread, small_batches):
    assert compress.compress(tree, plan, workers=2) == one_thread


@pytest.mark.parametrize(
    "rule", ["rows", pytest.param("calibrated", marks=pytest.mark.thorough)]
)
def test_rows_with_scales_are_coded_in_threads(rule, small_batches):
    rng = np.random.default_rng(1)
    net = {f"w{i}": rng.normal(size=(64, 64)).astype("f4") for i in range(2)}
    net["w0"] *= np.exp(rng.normal(size=(64, 1))).astype("f4")
    options: dict[str, Any] = {"sensitivity": "rows"}
    if rule == "calibrated":
        jnp = pytest.importorskip("jax.numpy")
        batches = rng.normal(size=(4, 256, 64)).astype("f4")
        batches *= np.exp(rng.normal(size=64)).astype("f4")
        run = lambda w, x: jnp.tanh(x @ w["w0"] / 8) @ w["w1"]
        options = {"sensitivity": compress.calibrate(run, net, batches)}
    plan = compress.plan(net, SizeBudget("7x"), **options)
    if rule != "calibrated":
        options = {}
    alone = compress.compress(net, plan, **options)
    assert compress.compress(net, plan, workers=2, **options) == alone


def test_a_caller_that_stops_early_stops_the_threads(tree, small_batches):
    def stop(share, text):
        if "coding" in text and share:
            raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        compress.compress(tree, SizeBudget("6x"), progress=stop, workers=2)
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("workers", "error"), [(0, ValueError), (-1, ValueError), (True, TypeError)]
)
def test_workers_are_counted(workers, error):
    with refuses(error, "workers"):
        compress.compress({"a": np.ones(3)}, SizeBudget("1x"), workers=workers)
