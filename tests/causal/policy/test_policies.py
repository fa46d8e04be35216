"""Each way to choose, on outlooks whose best experiment is known."""

import dataclasses

import numpy as np
import pytest

from frugax.causal.policy import (
    Outlook,
    expected_improvement,
    gain,
    improvement,
    value_of,
)
from frugax.causal.posterior import Points

#         a = 0, a = 1, b = 0, b = 1
SPLIT = [
    [0.0, -1.0, 0.0, -5.0],  # in one world of four b is much better
    [0.0, -1.0, 0.0, 1.0],
    [0.0, -1.0, 0.0, 1.0],
    [0.0, -1.0, 0.0, 1.0],
]


def outlook_of(loss, **changes):
    loss = np.array(loss)
    worlds, points = loss.shape
    ends = np.array([[0.0], [1.0]])
    made = Outlook(
        points=Points(((0,), (1,)), (ends, ends)),
        loss=loss,
        allowed=np.ones(loss.shape, bool),
        price=np.ones(points),
        affordable=np.ones(points, bool),
        reached=np.full(worlds, np.inf),
        breach=np.zeros(points),
        noise=0.1,
        done=Points((), ()),
    )
    return dataclasses.replace(made, **changes)


def chosen(policy, outlook, seed=0):
    return policy(outlook, np.random.default_rng(seed))


@pytest.mark.parametrize("policy", [improvement, gain])
def test_a_possible_large_gain_is_tried_before_a_likely_small_one(policy):
    outlook = outlook_of(SPLIT)
    assert outlook.best == 1
    assert chosen(policy, outlook) == 3
    # Not at a price that its hope does not pay for.
    dear = dataclasses.replace(outlook_of(SPLIT), price=np.array([1.0, 1, 1, 1e6]))
    worlds = dear.loss + np.array([[0.0], [0.3], [-0.3], [0.0]])
    assert chosen(policy, dataclasses.replace(dear, loss=worlds)) != 3


@pytest.mark.parametrize("policy", [improvement, gain])
def test_only_affordable_experiments_are_chosen(policy):
    affordable = np.array([True, False, True, False])
    for seed in range(8):
        outlook = outlook_of(SPLIT, affordable=affordable)
        assert affordable[chosen(policy, outlook, seed)]


@pytest.mark.parametrize("policy", [improvement, gain])
def test_the_same_seed_chooses_the_same(policy):
    outlook = outlook_of(SPLIT)
    assert chosen(policy, outlook, 5) == chosen(policy, outlook, 5)


def test_the_least_known_variable_is_tried_where_no_gain_is_expected():
    # The best is certain, and the others are worse in every world.
    loss = [[-9.0, 0.0, 0.0, 0.1], [-9.0, 0.0, 0.0, 2.1]]
    assert chosen(improvement, outlook_of(loss)) == 3


def test_pending_experiments_count_as_done():
    reached = np.array([-5.0, np.inf, np.inf, np.inf])
    again = outlook_of(SPLIT, reached=reached)
    assert chosen(improvement, outlook_of(SPLIT)) == 3
    assert value_of(again, 3).total > 0  # its outcome is not known yet

    assert expected_improvement(again)[3] == 0


def test_the_recommendation_is_not_the_luckiest_guess():
    # A little better on average, and much less sure.
    loss = [[0.0, -1.0, 0.0, -3.4], [0.0, -1.0, 0.0, 1.0]]
    assert outlook_of(loss).best == 1
    forbidden = np.array([[True, False, True, True], [True, True, True, True]])
    assert outlook_of(loss, allowed=forbidden).best == 3


def test_an_experiment_that_separates_models_is_worth_the_regret_it_saves():
    outlook = outlook_of(SPLIT)
    value = value_of(outlook, 3)
    # Today -1 in every world; told apart, -5 in one world of four: a quarter of 4.
    assert value.total == pytest.approx(1.0, abs=1e-6)
    # All worlds expect the same answer: it says nothing.
    assert value_of(outlook, 1).total == 0
    # One that is too noisy to tell them apart says nothing, either.
    assert value_of(dataclasses.replace(outlook, noise=1e6), 3).total < 1e-6


def test_without_an_allowed_choice_the_smallest_breach_is_recommended():
    never = np.zeros((4, 4), bool)
    breach = np.array([2.0, 3.0, 1.0, 4.0])
    assert outlook_of(SPLIT, allowed=never, breach=breach).best == 2
    once = never.copy()
    once[0, 3] = True
    assert outlook_of(SPLIT, allowed=once, breach=breach).best == 3


@pytest.mark.parametrize("policy", [improvement, gain])
def test_a_choice_that_broke_a_constraint_is_not_tried_again(policy):
    allowed = np.ones((4, 4), bool)
    allowed[1:, 3] = False
    loss = np.array(SPLIT) - [0.0, 0.0, 0.0, 9.0]
    new = outlook_of(loss, allowed=allowed)
    tried = dataclasses.replace(new, done=Points(((1,),), (np.array([[1.0]]),)))
    assert tried.refuted.tolist() == [False, False, False, True]
    assert chosen(policy, tried) != 3
    if policy is improvement:
        assert chosen(policy, new) == 3


def test_a_leader_that_was_tried_once_is_tried_again_before_it_is_believed():
    # Point 1 may lead by the luck of one outcome, and point 3 is known well.
    loss = [[0.0, -3.5, 0.0, -3.0], [0.0, -2.8, 0.0, -3.0], [0.0, -3.9, 0.0, -3.0]]
    tried = outlook_of(
        loss,
        repeats=np.array([0.0, 1.0, 0.0, 2.0]),
    )
    assert tried.best == 1
    assert chosen(improvement, tried) == 1
    again = dataclasses.replace(tried, repeats=np.array([0.0, 2.0, 0.0, 2.0]))
    assert chosen(improvement, again) != 1


def test_each_third_experiment_is_where_none_was_done_until_the_end():
    # Point 2 cannot improve, and point 0 is known.
    loss = np.array(SPLIT) + [[0.0, 0.0, 2.0, 0.0]] * 4
    loss[0, 2] += 1.0
    known = outlook_of(loss, repeats=np.array([2.0, 2.0, 0.0, 1.0]), left=4.0)
    asked = [
        chosen(improvement, dataclasses.replace(known, asked=i)) for i in range(12)
    ]
    assert asked == [3, 3, 2, 3, 3, 2, 3, 3, 2, 3, 3, 3]
    # Everything was tried, or nothing is known of what was.
    everywhere = dataclasses.replace(known, asked=2, repeats=np.array([2.0, 2, 1, 1]))
    assert chosen(improvement, everywhere) == 3
    assert chosen(improvement, dataclasses.replace(known, asked=2, repeats=None)) == 3
    # A constraint likely breaks there.
    allowed = np.ones((4, 4), bool)
    allowed[:, 2] = False
    unsafe = dataclasses.replace(known, asked=2, allowed=allowed)
    assert chosen(improvement, unsafe) == 3
