"""Tied tensors stand in a file once, under all of their names."""

import numpy as np
import pytest

from forged_files import rewritten
from frugax import SizeBudget, compress
from frugax.errors import CorruptFileError
from refusals import refuses

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(120, 64)).astype("f4")


def tied_tree(head):
    layers = {"w": RNG.normal(size=(64, 64)).astype("f4"), "b": np.zeros(64, "f4")}
    return {"head": TABLE, "layers": [layers, {"b": np.zeros(64, "f4")}], "zero": head}


@pytest.mark.parametrize("head", [TABLE, TABLE.copy()], ids=["shared", "copied"])
def test_a_tied_tensor_takes_its_bytes_once(tmp_path, head):
    path, tree = tmp_path / "w.fxz", tied_tree(head)
    budget = SizeBudget("6bpw")
    report = compress.save(path, tree, budget)
    alone = {name: leaf for name, leaf in tree.items() if name != "zero"}
    once = compress.compress(alone, budget)
    assert abs(report.file_bytes - len(once)) < 100
    plan = compress.plan(tree, budget)
    for table in (report, plan):
        named = {t.name: t for t in table.tensors}
        assert named["zero"].tied == "head"
        assert named["zero"].bytes == 0 < named["zero"].rel_error
        assert named["zero"].rel_error == named["head"].rel_error
        assert "tied to head" in str(table)
    whole = compress.inspect(path).original_bytes
    assert plan.original_bytes == report.original_bytes == whole
    assert compress.compress(tree, plan) == path.read_bytes()
    with compress.open(path) as file:
        assert file.names == (
            "head",
            "layers[0].b",
            "layers[0].w",
            "layers[1].b",
            "zero",
        )
        back = file.tree()
        assert np.array_equal(file["zero"], file["head"])
    assert back["zero"] is back["head"]
    assert not np.array_equal(back["head"], TABLE)
    assert compress.verify(path, against=tree).ok
    table = {t.name: t for t in compress.inspect(path).tensors}
    assert table["zero"].codec == "tied"
    assert table["zero"].bytes == 0 < table["head"].bytes


def test_a_plan_of_ties_is_for_ties_alone():
    tree = tied_tree(TABLE)
    untied = tree | {"zero": TABLE[::-1].copy()}
    for planned, other in ((tree, untied), (untied, tree)):
        plan = compress.plan(planned, SizeBudget("6bpw"))
        with refuses(ValueError, "zero"):
            compress.compress(other, plan)


def test_a_tied_tensor_is_packed_once():
    tree = {"head": TABLE, "odd": TABLE[:3], "table": TABLE.copy()}
    alone = compress.pack({"head": TABLE, "odd": TABLE[:3]}, SizeBudget("5x"))
    packed = compress.pack(tree, SizeBudget("5x"))
    assert packed.bytes == alone.bytes
    assert packed.tree["table"] is packed.tree["head"]
    named = {t.name: t for t in packed.tensors}
    assert named["table"].tied == "head"


def test_an_exported_head_that_is_the_embedding_is_named(tmp_path):
    names = ("model.embed_tokens.weight", "lm_head.weight")
    tree = dict.fromkeys(names, TABLE)
    path = tmp_path / "w.fxz"
    compress.save(path, tree, SizeBudget(max_abs=0))
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}')
    report = compress.export_quantised(path, tmp_path / "to")
    assert {t.name: t.tied for t in report.tensors} == dict(
        zip(names, ("", names[0]), strict=True)
    )
    assert report.quantised == 0
    assert report.dense_share == 1


def test_small_tensors_and_constants_are_not_tied():
    ones = {"a": np.ones((64, 64), "f4"), "b": np.ones((64, 64), "f4")}
    plan = compress.plan({**ones, "c": np.zeros(9), "d": np.zeros(9)}, SizeBudget("4x"))
    assert [t.name for t in plan.tensors] == ["a", "b", "c", "d"]


def test_the_sensitivities_of_ties_add_up():
    other = RNG.normal(size=(120, 64)).astype("f4")
    tree = {"a": TABLE, "b": other, "c": TABLE}
    weights = {"a": 1.0, "b": 1.0, "c": 15.0}
    plan = compress.plan(tree, SizeBudget("6x"), sensitivity=weights)
    errors = {t.name: t.rel_error for t in plan.tensors}
    assert errors["a"] == pytest.approx(errors["b"] / 4, rel=0.1)


def test_tied_torch_modules_come_back(tmp_path):
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Embedding(90, 64), torch.nn.Linear(64, 90))
    net[1].weight = net[0].weight
    compress.save(tmp_path / "w.fxz", net, SizeBudget("6bpw"))
    back = compress.load(tmp_path / "w.fxz", like=net)
    assert torch.equal(back["0.weight"], back["1.weight"])
    net.load_state_dict(back)


@pytest.mark.parametrize("tied", ["nothing", 3, "zero"])
def test_a_tie_to_nothing_is_damage(tied):
    data = compress.compress(tied_tree(TABLE), SizeBudget("6bpw"))

    def forge(header):
        (item,) = (t for t in header["tensors"] if "tied" in t)
        item["tied"] = tied
        return header

    with refuses(CorruptFileError, "zero"):
        compress.decompress(rewritten(data, forge))
