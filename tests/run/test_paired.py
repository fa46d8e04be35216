"""The interval of a difference covers the truth, and the receipt says cannot tell."""

import numpy as np
import pytest

from frugax.budget import Verdict
from frugax.run._finish import accuracy_spend
from frugax.run._paired import examples_that_tell, paired_difference
from frugax.run._task_checks import Figures


def answers(count, *, lost, gained=0):
    before, after = np.ones(count), np.ones(count)
    after[:lost] = 0
    before[lost : lost + gained] = 0
    return before, after


def figures(examples):
    return Figures({"accuracy": float(np.mean(examples))}, {"accuracy": examples})


def spend(before, after, limit, *, is_exact=False):
    return accuracy_spend(limit, figures(before), figures(after), *trees(is_exact))


def trees(is_exact):
    """Weights, and those in their file."""
    return {"w": np.zeros(2)}, {"w": np.full(2, 0.0 if is_exact else 1e-3)}


def test_the_interval_of_lost_answers_covers_the_truth():
    rng, truth, missed = np.random.default_rng(0), 0.03, 0
    for _ in range(400):
        lost, gained = rng.random(300) < 0.05, rng.random(300) < 0.02
        before, after = np.where(gained, 0.0, 1.0), np.where(lost, 0.0, 1.0)
        change = paired_difference(before, after)
        missed += not change.low <= truth <= change.high
    # Each bound holds with 95%, so both together with 90%.
    assert missed <= 0.13 * 400


def test_one_lost_image_of_359_does_not_show_half_a_percent():
    found = spend(*answers(359, lost=1), 0.005)
    assert found.measured == pytest.approx(1 / 359)
    assert found.verdict is Verdict.CANNOT_TELL
    assert "359 test examples are too few: about 6,750 would tell" in found.problems
    assert spend(*answers(359, lost=1), 0.02).verdict is Verdict.KEPT
    assert spend(*answers(359, lost=30), 0.02).verdict is Verdict.BROKEN


def test_the_stated_number_of_examples_suffices_for_a_verdict():
    before, after = answers(359, lost=1)
    needed = examples_that_tell(paired_difference(before, after), 0.005)
    assert needed is not None
    times = -(-needed // 359)
    many = spend(np.tile(before, times), np.tile(after, times), 0.005)
    assert many.verdict is Verdict.KEPT


def test_equal_weights_have_zero_loss_of_accuracy():
    assert spend(*answers(3, lost=0), 0.0).verdict is Verdict.CANNOT_TELL
    assert spend(*answers(3, lost=0), 0.0, is_exact=True).verdict is Verdict.KEPT


@pytest.mark.parametrize(("before", "after"), [(np.nan, 0.5), (0.5, np.nan)])
def test_nan_is_never_kept(before, after):
    one, two = (Figures({"accuracy": x}, {}) for x in (before, after))
    found = accuracy_spend(0.5, one, two, *trees(is_exact=True))
    assert found.verdict is Verdict.CANNOT_TELL
    assert "returns" in found.problems


def test_a_single_number_has_no_interval():
    one = Figures({"accuracy": 0.9}, {})
    found = accuracy_spend(0.5, one, one, *trees(is_exact=False))
    assert found.verdict is Verdict.CANNOT_TELL
    assert "as an array" in found.problems


def test_other_figures_are_resampled():
    rng = np.random.default_rng(1)
    before = rng.normal(size=500)
    change = paired_difference(before, before - 0.1 + 0.01 * rng.normal(size=500))
    assert change.low < 0.1 < change.high
    assert change.noise < 0.01


@pytest.mark.parametrize("scale", [1, 100, 0.25])
@pytest.mark.parametrize("lost", [0, 1, 30])
def test_answers_on_any_scale_have_the_interval_of_answers(scale, lost):
    one = paired_difference(*answers(400, lost=lost, gained=2))
    other = paired_difference(*(scale * x for x in answers(400, lost=lost, gained=2)))
    assert other.mean == pytest.approx(scale * one.mean)
    assert other.noise == pytest.approx(scale * one.noise)
    assert other.method == one.method


def test_unchanged_answers_in_percent_do_not_show_a_drop_of_two_hundredths():
    right = np.r_[np.full(300, 100.0), np.zeros(100)]
    assert paired_difference(right, right).noise == pytest.approx(0.672, abs=1e-3)
    assert spend(right, right, 0.02).verdict is Verdict.CANNOT_TELL
    assert spend(right, right, 0.7).verdict is Verdict.KEPT


@pytest.mark.parametrize("all_of_them", [0.0, 1.0, 100.0])
def test_answers_that_are_all_alike_may_still_change_elsewhere(all_of_them):
    same = np.full(50, all_of_them)
    assert paired_difference(same, same).noise >= (all_of_them or 1.0) / 50


def test_figures_that_are_not_answers_do_not_get_the_interval_of_answers():
    losses = np.random.default_rng(0).normal(size=400) * 50
    same = paired_difference(losses, losses)
    assert same.noise == 0
    assert "answers" not in same.method
    by_whole_numbers = paired_difference(losses, losses - np.arange(400) % 2)
    assert "answers" not in by_whole_numbers.method


def test_accuracy_may_be_a_share_for_each_example():
    rng = np.random.default_rng(2)
    before = rng.integers(0, 5, 200) / 4
    after = np.clip(before - 0.25 * (rng.random(200) < 0.1), 0, 1)
    found = spend(before, after, 0.1)
    assert found.verdict is Verdict.KEPT
    assert 0 < found.noise < 0.05
