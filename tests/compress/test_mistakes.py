"""Arguments of a wrong type are refused at the public functions, with a remedy."""

import operator

import numpy as np
import pytest

import forked
from frugax import SizeBudget, compress
from refusals import refuses

W = {"w": np.ones((8, 8))}


def test_arguments_of_a_wrong_type_are_named_without_a_type_checker(tmp_path):
    compress.save(tmp_path / "w.fxz", W, SizeBudget(max_abs=0))
    code = """
import sys
import numpy as np
from frugax import SizeBudget, compress

tree, six = {"w": np.ones((20, 20))}, SizeBudget("6x")
for call in (
    lambda: compress.open(b"frx"),
    lambda: compress.inspect(None),
    lambda: compress.verify(3),
    lambda: compress.load_weights(None),
    lambda: compress.save(None, tree, six),
    lambda: compress.export_npz("m.fxz", None),
    lambda: compress.apply(tree, "x"),
    lambda: compress.plan(tree, six, sensitivity=[1]),
    lambda: compress.plan(tree, six, sensitivity={"w": "x"}),
    lambda: compress.plan(tree, six, progress=3),
    lambda: compress.decompress("c.fxz"),
):
    try:
        call()
    except TypeError as e:
        print(e)
"""
    done = forked.python(code, tmp_path / "w.fxz")
    assert done.returncode == 0, done.stderr
    named = "bytes NoneType int NoneType NoneType NoneType 'x' [1] 'x' 3 str"
    lines = done.stdout.splitlines()
    assert len(lines) == len(named.split())
    assert all(map(operator.contains, lines, named.split()))


@pytest.mark.parametrize("given", [{"rel_error": 0.0}, {"size": 0}])
def test_exact_and_empty_tensors_have_no_distance_to_the_bound(given):
    known = {"rel_error": 0.1, "stored_bytes": 9, "size": 9} | given
    with refuses(ValueError, "rel_error"):
        compress.gap_to_bound_db(**known)


@pytest.mark.parametrize(
    ("export", "name", "suffix"),
    [
        (compress.export_npz, "w.txt", ".npz"),
        (compress.export_safetensors, "w.npz", ".safetensors"),
    ],
)
def test_a_file_is_identified_by_its_content(tmp_path, export, name, suffix):
    compress.save(tmp_path / "w.fxz", W, SizeBudget(max_abs=0))
    with refuses(ValueError, name, suffix):
        export(tmp_path / "w.fxz", tmp_path / name)
    assert not (tmp_path / name).exists()
