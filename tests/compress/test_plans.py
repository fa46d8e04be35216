"""Plans and reports: data, and true of the file."""

import copy

import numpy as np

from frugax import compress
from frugax.budget import Plan
from refusals import refuses
from saved_tree import SIX, TREE


def test_the_report_equals_the_decoded_file(saved):
    path, report = saved
    with compress.open(path) as file:
        x = TREE["a"][0].astype(np.float64)
        gap = file["a[0]"] - x
    tensor = report.tensors[0]
    np.testing.assert_allclose(
        tensor.rel_error, np.linalg.norm(gap) / np.linalg.norm(x), rtol=1e-12
    )
    assert tensor.max_abs == report.max_abs == np.abs(gap).max()
    bits = 8 * tensor.bytes / x.size
    bound = (x**2).mean() * 2 ** (-2 * bits)
    gap_db = 10 * np.log10((gap**2).mean() / bound)
    np.testing.assert_allclose(tensor.bound_gap_db, gap_db)
    # 1.53 dB is the floor of any uniform grid at high rate; the table of symbols and
    # the lanes of a tensor this small cost the rest.
    assert 1.5 < gap_db < 3
    assert report.ratio >= 4
    assert report.verdict == "kept"


def test_plans_are_data_and_carry_themselves_out():
    plan = compress.plan(TREE, SIX)
    assert isinstance(plan, Plan)
    again = compress.CompressPlan.from_json(plan.to_json())
    assert again == plan
    assert hash(again) == hash(plan)
    data = compress.compress(TREE, again)
    assert len(data) == plan.file_bytes == plan.predicted
    assert data == compress.compress(TREE, SIX)


def test_a_report_shows_the_prediction_of_the_plan(tmp_path):
    plan = compress.plan(TREE, SIX)
    trained = {**TREE, "a": [TREE["a"][0] * np.float32(0.9), (None,)]}
    spend = compress.save(tmp_path / "w.fxz", trained, plan).spends[0]
    assert spend.predicted == plan.file_bytes != spend.measured
    assert spend.source.endswith("predicted by the plan")
    spend = compress.save(tmp_path / "w.fxz", trained, SIX).spends[0]
    assert spend.predicted == spend.measured
    assert spend.source.endswith("predicted by coding these very weights")


def test_a_plan_for_something_else_is_refused():
    plan = compress.plan(TREE, SIX)
    with refuses(ValueError, "weights"):
        compress.compress({**TREE, "b": np.zeros(3)}, plan)
    wider = {**TREE, "a": [TREE["a"][0] * np.float32(1000), (None,)]}
    with refuses(ValueError, "values"):
        compress.apply(wider, plan)


def test_apply_gives_bytes_or_a_file_with_the_same_receipt(tmp_path):
    plan = compress.plan(TREE, SIX)
    data = compress.apply(TREE, plan)
    report = compress.apply(TREE, plan, path=tmp_path / "w.fxz")
    assert isinstance(data, compress.CompressedBytes)
    assert (tmp_path / "w.fxz").read_bytes() == data
    assert data.report == report
    assert data.receipt == report.receipt
    assert data.receipt.verdict == "kept"
    assert data.receipt.spends[0].measured == len(data) == plan.predicted
    assert repr(data) == f"CompressedBytes({len(data):,} bytes, kept)"


def test_compressed_bytes_keep_their_report_when_copied():
    data = compress.compress(TREE, SIX)
    again = copy.deepcopy(data)
    assert again == data
    assert again.report == data.report
    assert type(data[:9]) is bytes  # a part of a file has no report


def test_sensitivity_beside_a_plan_is_refused():
    plan = compress.plan(TREE, SIX)
    with refuses(ValueError, "sensitivity"):
        compress.compress(TREE, plan, sensitivity={"a[0]": 1.0})
