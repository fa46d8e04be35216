"""Every budget is met by the file itself, and nearly used up."""

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from frugax import SizeBudget, compress, trees
from frugax.errors import InfeasibleBudgetError
from refusals import refuses
from tiers import mostly_thorough

pytestmark = pytest.mark.slow

SIZES = [{"ratio": r} for r in (2, 3, 4, 6, 8, 10, 12, 40)]
SIZES += [{"bits_per_weight": b} for b in (2.5, 4.25, 9)] + [{"bytes": "50KiB"}]


NORMAL = np.random.default_rng(0).normal(size=(60, 60))


def weights(name="float32", seed=0):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    rng = np.random.default_rng(seed)
    make = lambda *shape: rng.normal(size=shape).astype(dtype)
    return {
        "embed": make(200, 64) * np.asarray(0.02, dtype),
        "layers": [{"w": make(256, 256), "b": make(256)} for _ in range(2)],
        "steps": np.int32(7),
    }


def relative_error(a, b):
    pairs = [
        (x.astype(np.float64), y.astype(np.float64))
        for (_, x), (_, y) in zip(
            trees.named_leaves(a), trees.named_leaves(b), strict=True
        )
        if x.dtype.kind != "i"
    ]
    gap = sum(((x - y) ** 2).sum() for x, y in pairs)
    return (gap / sum((x**2).sum() for x, _ in pairs)) ** 0.5


def largest_error(a, b):
    pairs = zip(trees.named_leaves(a), trees.named_leaves(b), strict=True)
    return max(
        np.abs(x.astype(np.float64) - y.astype(np.float64)).max()
        for (_, x), (_, y) in pairs
    )


@pytest.mark.parametrize(
    "limits",
    mostly_thorough(SIZES, in_ci=lambda s: s in (SIZES[0], SIZES[-1], {"ratio": 8})),
    ids=str,
)
def test_a_size_is_met_by_the_real_file_and_nearly_used_up(limits, tmp_path):
    tree, budget = weights(), SizeBudget(**limits)
    original = trees.nbytes(tree)
    count = sum(leaf.size for _, leaf in trees.named_leaves(tree))
    limit = budget.limit_bytes(original_bytes=original, weights=count)
    report = compress.save(tmp_path / "w.fxz", tree, budget)
    length = (tmp_path / "w.fxz").stat().st_size
    assert limit is not None
    assert 0.98 * limit < length <= limit
    assert report.file_bytes == length
    assert report.verdict == "kept"


@pytest.mark.parametrize(
    "dtype",
    mostly_thorough(
        ["float16", "bfloat16", "float32", "float64"],
        in_ci=lambda d: d in {"bfloat16", "float32"},
    ),
)
@pytest.mark.parametrize(
    "target", mostly_thorough([1e-3, 1e-2, 0.05, 0.1], in_ci=lambda t: t == 0.05)
)
def test_a_relative_error_is_met_and_nearly_used_up(dtype, target):
    tree = weights(dtype)
    back = compress.decompress(compress.compress(tree, SizeBudget(rel_error=target)))
    found = relative_error(tree, back)
    assert found <= target
    if dtype != "bfloat16" or target > 1e-2:
        # A bfloat16 rounds at 2e-3 already: finer steps come out exact by chance.
        assert found >= 0.99 * target


@pytest.mark.parametrize("target", [1e-4, 1e-2, 0.1])
def test_a_largest_error_is_met_and_nearly_used_up(target):
    tree = weights()
    back = compress.decompress(compress.compress(tree, SizeBudget(max_abs=target)))
    assert 0.95 * target <= largest_error(tree, back) <= target


@pytest.mark.parametrize("limits", [{"rel_error": 0}, {"max_abs": 0}, {"ratio": 0.9}])
def test_no_error_means_no_error(limits):
    tree = weights()
    back = compress.decompress(compress.compress(tree, SizeBudget(**limits)))
    for (_, x), (_, y) in zip(
        trees.named_leaves(tree), trees.named_leaves(back), strict=True
    ):
        assert x.tobytes() == y.tobytes()


def test_a_tensor_of_small_weights_is_not_silenced():
    # One step for all would round the embedding, 50 times smaller, to nothing.
    plan = compress.plan(weights(), SizeBudget(ratio=6))
    errors = {t.name: t.rel_error for t in plan.tensors if t.step}
    assert {"embed", "layers[0].w", "layers[1].w"} <= set(errors)
    # Relative errors go with the weights' sizes, up to 4 to 1; a step of most of a
    # deviation, as here, errs a few per cent less than a fine one.
    ratio = errors["embed"] / errors["layers[0].w"]
    assert 0.85 * 4 < ratio < 4 * 1.05


@pytest.mark.parametrize("unit", [1e-2, 1e-6, 1e-25])
def test_no_tensor_is_lost_while_others_are_fine(unit):
    tree = {"w": NORMAL.astype("f"), "x": (NORMAL[:32] * unit).astype("f")}
    w, x = compress.plan(tree, SizeBudget(ratio=8)).tensors
    assert w.rel_error < x.rel_error < 4.5 * w.rel_error < 0.4


@pytest.mark.parametrize("most", [3.4e38, 3e38])
def test_values_near_the_largest_float_leave_the_others_their_precision(most):
    tree = {"w": NORMAL.astype("f"), "x": np.full(2000, most, "f")}
    w, x = compress.plan(tree, SizeBudget(ratio=3)).tensors
    assert x.bytes < 200
    assert w.rel_error < 1e-4
    assert x.rel_error < 1e-4


def test_a_tensor_of_denormals_stays_exact_beside_others():
    tree = {"w": NORMAL.astype("f"), "x": (NORMAL[0] * 1e-40).astype("f")}
    plan = compress.plan(tree, SizeBudget(ratio=12))
    assert [t.rel_error > 0 for t in plan.tensors] == [True, False]


@pytest.mark.parametrize("unit", [1e-6, pytest.param(1e6, marks=pytest.mark.thorough)])
def test_the_unit_of_the_weights_does_not_matter(unit):
    tree = {k: weights()[k] for k in ("embed", "layers")}
    scaled = jax.tree.map(lambda w: (w * unit).astype(w.dtype), tree)
    one, other = (compress.plan(t, SizeBudget(ratio=6)) for t in (tree, scaled))
    # Steps have 11 bits, so the two may differ by 2^-10 in each.
    np.testing.assert_allclose(one.rel_error, other.rel_error, rtol=4 * 2**-10)


def test_small_tensors_are_kept_much_more_exact():
    tensors = compress.plan(weights(), SizeBudget(ratio=8)).tensors
    found = {t.name: t for t in tensors}
    assert found["layers[0].b"].rel_error < found["layers[0].w"].rel_error / 5
    assert found["steps"].codec == "stored"


@pytest.mark.thorough
def test_the_default_costs_little_total_error_however_many_tensors_are_small():
    # Half of the numbers in vectors: three bits more for each would cost 9 dB.
    rng = np.random.default_rng(3)
    tree = {f"b{i}": rng.normal(size=2000).astype("f4") for i in range(8)}
    tree["w"] = rng.normal(size=(160, 100)).astype("f4")
    default, equal = (
        compress.plan(tree, SizeBudget("8x"), sensitivity=rule).rel_error
        for rule in ("default", "equal")
    )
    assert default < 1.06 * equal  # 0.5 dB


def test_a_tensor_of_the_same_size_that_matters_more_gets_more_bits():
    tree = {k: NORMAL.astype(np.float32) for k in "ab"}
    plan = compress.plan(tree, SizeBudget(ratio=7), sensitivity={"a": 16.0, "b": 1.0})
    a, b = plan.tensors
    # Equal slopes: a fourth of the error is two bits, give or take a wide grid.
    assert a.rel_error < b.rel_error / 3
    assert 1.5 < 8 * (a.bytes - b.bytes) / NORMAL.size < 2.5


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"a": 1.0}, "'b'"),
        ({"a": 1.0, "b": -1.0}, "'b'"),
        ({"a": 1.0, "b": 1.0, "c": 1.0}, "'c'"),
    ],
)
def test_a_sensitivity_that_does_not_fit_is_refused(given, named):
    tree = {k: NORMAL.astype(np.float32) for k in "ab"}
    with refuses(ValueError, named):
        compress.plan(tree, SizeBudget(ratio=7), sensitivity=given)


@pytest.mark.parametrize("noise", [0, -1, np.nan, np.inf])
def test_invalid_noise_is_refused(noise):
    with refuses(ValueError, "noise"):
        compress.sensitivity_of(lambda w: w["w"], {"w": np.ones(2)}, noise=noise)


def test_sensitivity_is_measured_on_answers():
    tree = {"x": NORMAL, "y": NORMAL, "n": np.arange(3)}
    found = compress.sensitivity_of(lambda w: 3 * w["x"] + w["y"], tree)
    assert found.keys() == {"x", "y"}
    assert found["x"] == pytest.approx(9)
    assert found["y"] == pytest.approx(1)
    with refuses(ValueError):
        compress.sensitivity_of(lambda w: w["x"] * np.inf, {"x": NORMAL})


def test_the_choice_is_close_to_the_best_of_its_options():
    plan = compress.plan(weights(), SizeBudget(ratio=6))
    gap = plan.allocation_gap
    assert gap is not None
    assert 0 <= gap < 0.005


def test_progress_rises_and_may_stop_the_work():
    seen = []
    tree = {"w": NORMAL.astype(np.float32)}
    compress.compress(
        tree, SizeBudget(ratio=6), progress=lambda done, what: seen.append((done, what))
    )
    shares = [done for done, _ in seen]
    assert shares == sorted(shares)
    assert 0 <= min(shares) <= max(shares) == 1
    assert seen[-1] == (1.0, "done")
    assert {"sampling", "coding w"} <= {what for _, what in seen}

    def stop(done, what):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compress.plan(tree, SizeBudget(ratio=6), progress=stop)


@pytest.mark.parametrize(
    "limits",
    [
        {"bytes": 100},
        pytest.param({"ratio": 1e6}, marks=pytest.mark.thorough),
        pytest.param({"bytes": 50_000, "rel_error": 1e-4}, marks=pytest.mark.thorough),
        pytest.param({"ratio": 12, "max_abs": 1e-3}, marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_an_infeasible_budget_names_a_feasible_one(limits):
    tree = weights()
    with pytest.raises(InfeasibleBudgetError) as caught:
        compress.plan(tree, SizeBudget(**limits))
    needed = int(caught.value.needed)
    errors = {k: v for k, v in limits.items() if k in ("rel_error", "max_abs")}
    plan = compress.plan(tree, SizeBudget(bytes=needed, **errors))
    assert plan.file_bytes == needed
    # With an error it is the smallest that a search has found, and no bound.
    assert caught.value.proven == (not errors)
    less = needed * 49 // 50 if errors else needed - 1
    with pytest.raises(InfeasibleBudgetError):
        compress.plan(tree, SizeBudget(bytes=less, **errors))


@pytest.mark.parametrize(("name", "limit"), [("ratio", 1e5), ("bits_per_weight", 0.01)])
def test_a_ratio_out_of_reach_names_the_best(name, limit):
    tree, asked = {"w": NORMAL}, {name: limit}
    with pytest.raises(InfeasibleBudgetError) as caught:
        compress.plan(tree, SizeBudget(**asked))
    best = caught.value.reachable[name]
    assert f"{limit:g}" in str(caught.value)
    assert f"{best:g}" in str(caught.value)
    reached: dict[str, Any] = {name: best}
    plan = compress.plan(tree, SizeBudget(**reached))
    assert plan.file_bytes == caught.value.needed


def test_an_empty_tree_has_no_ratio():
    with refuses(InfeasibleBudgetError, unit="bytes"):
        compress.plan({"w": np.ones((0, 3))}, SizeBudget("2x"))


@pytest.mark.parametrize(
    "w",
    [
        NORMAL * 1e300,
        (NORMAL * 1e-40).astype(np.float32),
        NORMAL.astype(np.complex64),
        (NORMAL * 1e6).astype(np.int32),
    ],
    ids=lambda w: str(w.dtype),
)
def test_tensors_that_must_be_exact_are_named_where_they_prevent_a_budget(w):
    tree = {"w": w, "v": np.full((20, 20), 1e-40, np.float32)}
    with pytest.raises(InfeasibleBudgetError) as caught:
        compress.plan(tree, SizeBudget(ratio=8))
    assert f"'w' ({w.dtype}" in caught.value.hint
    # A larger error would not help where the exact tensor alone is too long.
    with pytest.raises(InfeasibleBudgetError) as caught:
        compress.plan(tree, SizeBudget(ratio=8, rel_error=0.01))
    assert f"'w' ({w.dtype}" in caught.value.hint
    # Nor would converting it where names and shapes are too long as well.
    with pytest.raises(InfeasibleBudgetError) as caught:
        compress.plan(tree, SizeBudget(bytes=100))
    assert "'w'" not in caught.value.hint


@pytest.mark.parametrize("tree", [{}, None, []])
def test_a_tree_without_weights_fits_or_reports_its_file_size(tree):
    with refuses(InfeasibleBudgetError, unit="bytes") as caught:
        compress.plan(tree, SizeBudget(ratio=2))
    needed = int(caught.value.needed)
    plan = compress.plan(tree, SizeBudget(bytes=needed))
    assert plan.file_bytes == needed
    with refuses(InfeasibleBudgetError, unit="bytes"):
        compress.plan(tree, SizeBudget(bytes=needed - 1, rel_error=0.1))


def test_few_weights_are_exact_where_that_is_shorter():
    tree = NORMAL[0, :10].astype("f")
    exact = compress.plan(tree, SizeBudget(max_abs=0)).file_bytes
    within = compress.plan(tree, SizeBudget(bytes=exact, rel_error=0.01))
    assert within.file_bytes <= exact


@pytest.mark.parametrize("budget", [SizeBudget("4x"), SizeBudget(rel_error=0.01)])
def test_repeats_that_no_sample_shows_are_found(budget):
    w = np.tile(NORMAL[:2].astype("f"), (30, 1))
    exact = compress.plan(w, SizeBudget(max_abs=0)).file_bytes
    plan = compress.plan(w, budget)
    assert (plan.file_bytes, plan.rel_error) == (exact, 0)


def test_bytes_left_by_a_size_budget_make_cheap_tensors_exact():
    w = np.random.default_rng(0).normal(size=(200, 200)).astype("f")
    plan = compress.plan({"norm": np.ones(384, "f"), "w": w}, SizeBudget("2x"))
    assert plan.tensors[0].max_abs == 0 < plan.tensors[1].max_abs
    assert 0.99 <= plan.file_bytes / (plan.original_bytes / 2) <= 1


@pytest.mark.parametrize(("ratio", "error"), [(6, 0.08), (3, 0.002)])
def test_one_outlier_a_million_times_the_rest_costs_few_bytes(ratio, error):
    w, budget = NORMAL.astype("f"), SizeBudget(ratio=ratio)
    w[3, 4] = 1e6
    plan = compress.plan({"w": w}, budget)
    assert plan.tensors[0].codec == "trellis"
    assert 0.97 <= plan.file_bytes / (w.nbytes / ratio) <= 1
    back = compress.decompress(compress.apply({"w": w}, plan))
    assert np.sqrt(np.mean((back["w"] - w) ** 2)) < error


def test_a_largest_error_beyond_the_longest_step_is_used():
    w = (NORMAL[:20] * 1e38).clip(-3e38, 3e38).astype(ml_dtypes.bfloat16)
    plan = compress.plan(w, SizeBudget(max_abs=3e36))
    assert 1e35 < plan.max_abs <= 3e36


def test_the_needed_size_is_at_most_that_of_a_file_of_zeros():
    tree = {"a": NORMAL.astype("f"), "b": NORMAL[:20].astype("f")}
    zeros = compress.plan(tree, SizeBudget(max_abs=100)).file_bytes
    with pytest.raises(InfeasibleBudgetError) as caught:
        compress.plan(tree, SizeBudget(bytes=100))
    # The step's own digits may pack a byte or two shorter.
    assert caught.value.needed <= zeros + 2


def test_a_size_and_an_error_together_give_the_smallest_file_within_the_error():
    tree = weights()
    alone = compress.plan(tree, SizeBudget(rel_error=0.05))
    both = compress.plan(tree, SizeBudget(ratio=4, rel_error=0.05))
    assert both.file_bytes == alone.file_bytes
    assert both.predicted == both.file_bytes
    assert alone.predicted == alone.rel_error <= 0.05


@pytest.mark.parametrize("size", [1500, 4000])
def test_the_error_reached_by_a_size_can_be_required_with_it(size):
    tree = {"w": np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32)}
    alone = compress.plan(tree, SizeBudget(bytes=size))
    both = compress.plan(tree, SizeBudget(bytes=size, rel_error=alone.rel_error))
    assert both.rel_error <= alone.rel_error
    both = compress.plan(tree, SizeBudget(bytes=size, max_abs=alone.max_abs))
    assert both.max_abs <= alone.max_abs


@pytest.mark.parametrize("name", ["rel_error", "max_abs"])
def test_the_least_error_within_a_size_is_reported_and_reachable(name):
    tree = {"w": np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32)}
    with refuses(InfeasibleBudgetError, unit="bytes") as e:
        compress.plan(tree, SizeBudget(bytes=1500, **{name: 1e-3}))
    reachable = e.value.reachable
    assert reachable["bytes"] == e.value.needed
    assert isinstance(e.value.best, compress.CompressPlan)
    assert e.value.best.file_bytes == e.value.needed
    assert f"{reachable[name]:.4g}" in str(e.value)
    with_it = SizeBudget(bytes=1500, **{name: reachable[name]})
    assert compress.plan(tree, with_it).file_bytes <= 1500
    with pytest.raises(InfeasibleBudgetError):
        compress.plan(tree, SizeBudget(bytes=1500, **{name: 0.8 * reachable[name]}))


def normed_net(seed=0):
    """Three layers for inputs of 1/30, with a batch norm after the first."""
    rng = np.random.default_rng(seed)
    variance = 10.0 ** rng.uniform(-0.7, 0.7, size=64)
    net = {"w0": rng.normal(size=(32, 64)) * np.sqrt(variance / 32)}
    net |= {"w1": rng.normal(size=(64, 64)) / 8, "w2": rng.normal(size=(64, 8)) / 8}
    net |= {"var0": variance / 900, "gain0": rng.uniform(0.5, 1.5, 64)}
    return {name: w.astype("f4") for name, w in net.items()}


def normed_outputs(net, x):
    x = np.maximum(
        x @ net["w0"] / np.sqrt(np.abs(net["var0"]) + 1e-5) * net["gain0"], 0
    )
    return np.maximum(x @ net["w1"], 0) @ net["w2"]


def test_no_channel_is_lost_by_the_step_of_its_variance():
    net = normed_net()
    x = np.random.default_rng(1).normal(size=(200, 32)) / 30
    before = normed_outputs(net, x)

    def change(rule):
        back = compress.decompress(
            compress.compress(net, SizeBudget("5x"), sensitivity=rule)
        )
        gap = np.linalg.norm(normed_outputs(back, x) - before)
        return gap / np.linalg.norm(before)

    assert change("equal") > 3 * change("default")
    assert change("default") < 0.1


@pytest.mark.parametrize("values", [[0.0] * 63 + [1.0], [1e-38] * 64, [1e30] * 64])
def test_vectors_without_negative_numbers_of_any_size_are_planned(values):
    tree = {"w": NORMAL.astype("f4"), "v": np.array(values, "f4")}
    assert compress.compress(tree, SizeBudget("6x")).receipt.verdict == "kept"


def test_long_positive_vectors_take_few_bits_from_the_rest():
    rng = np.random.default_rng(3)
    tree = {"w": rng.normal(size=(200, 100)).astype("f4")}
    tree["v"] = np.exp(3 * rng.normal(size=6000)).astype("f4")
    default, before = (
        compress.plan(tree, SizeBudget("8x"), sensitivity=rule).tensors[0].rel_error
        for rule in ("default", {"w": 1.0, "v": 1.0})
    )
    assert default < 1.3 * before


def test_a_sensitivity_counts_beside_a_tensor_of_huge_numbers():
    # A constant of 1e9, as masks have, floored the weights of all other tensors.
    tree = {k: NORMAL.astype(np.float32) for k in "ab"}
    tree["mask"] = np.where(NORMAL > 0, 1e9, -1e9).astype(np.float32)
    given = {"a": 256.0, "b": 1.0, "mask": 1.0}
    a, b, _ = compress.plan(tree, SizeBudget(ratio=7), sensitivity=given).tensors
    assert a.rel_error < b.rel_error / 3
