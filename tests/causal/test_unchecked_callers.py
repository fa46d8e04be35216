"""Errors for callers without a type checker: the same, with the value and its place."""

import forked

# In its own process: in this one every call is type-checked before it is made.
CODE = """
import numpy as np
from frugax import ExperimentBudget, causal
from frugax.causal import SCM, Samples
from frugax.compat import causal_training as guide

scm = SCM.linear({"x": {}, "y": {"x": 1.0}})
no = lambda n, d: np.zeros((n, d), bool)
campaign = lambda variables={"x": (-2, 2), "z": (-3, 3)}, **more: causal.Campaign(
    variables=variables,
    target="y",
    budget=ExperimentBudget(n=1),
    **more,
)
for case in (
    lambda: SCM.create({"a": 1.0}),
    lambda: SCM.linear({"a": {}, "b": {"a": "2"}}),
    lambda: SCM.linear({"a": {}}, bias={"a": None}),
    lambda: SCM.linear({"a": {}}, noise_scale=1e39),
    lambda: SCM.linear({3: {}}),
    lambda: Samples((), np.zeros((1, 0)), no(1, 0)),
    lambda: Samples(("x", "x"), np.zeros((1, 2)), no(1, 2)),
    lambda: Samples(("x",), np.zeros((1, 2)), no(1, 1)),
    lambda: Samples(("x",), np.zeros((1, 1)), no(2, 1)),
    lambda: causal.simulate(scm.mechanisms, None, 3, causal.intervene(x=1.0)),
    lambda: causal.intervene(x="high"),
    lambda: causal.intervene(x=np.array([1, 2])),
    lambda: causal.intervene(x=1e300),
    lambda: causal.intervene(x=1.0) | {"y": 1.0},
    lambda: causal.sample(scm, 3, seed=-1),
    lambda: causal.sample(scm, 1.5, seed="a"),
    lambda: causal.sample(scm, 3, seed=0, intervention={"x": 1.0}),
    lambda: causal.generate_scm("chain", 2.5, seed=0),
    lambda: causal.generate_batch(1, d=(5, 3), seed=0),
    lambda: causal.generate_batch(1, d=(3, 5), pad_to=4, seed=0),
    lambda: causal.load_default_surrogate().edge_probabilities({"x": [1.0]}),
    lambda: causal.load_default_surrogate().edge_probabilities(np.zeros((60, 3))),
    lambda: causal.select_graph(np.zeros(3)),
    lambda: causal.save_surrogate(scm, "s.fxz"),
    lambda: guide.create_training_batch({"x": [1.0]}, scm, 2),
    lambda: causal.train_surrogate(seed=0, steps=0),
    lambda: campaign(forbidden_sets=["xz"]),
    lambda: campaign(sets=["xz"]),
    lambda: campaign(forbidden=["xz"]),
    lambda: campaign(required=[("x", "z", "y")]),
    lambda: campaign(["x", "z"]),
    lambda: campaign({"x": 2.0}),
    lambda: campaign({"x": (0, 1, 2)}),
    lambda: campaign({"x": ["Pd", "Ni", "Cu"]}),
    lambda: campaign({"x": ("0", "1")}),
    lambda: campaign({"x": (None, 1)}),
    lambda: campaign(constraints={"z": 1.0}),
    lambda: campaign(seed=1.5),
    lambda: campaign(policy="greedy"),
    lambda: campaign(minimize="no"),
    lambda: causal.campaign.Grid(("1", "2")),
    lambda: causal.campaign.Grid((True, 2)),
    lambda: causal.campaign.Logarithmic(("1", 10.0)),
    lambda: causal.posterior.DiscretePosterior(max_parents=-1),
    lambda: causal.posterior.DiscretePosterior(max_parents=1.5),
    lambda: causal.posterior.DiscretePosterior(prior_rows=0.0),
    lambda: causal.posterior.DiscretePosterior().edges({"x": [1.0]}),
    lambda: ExperimentBudget(cost="5"),
    lambda: ExperimentBudget(n=1, costs={"a": "1"}),
    lambda: ExperimentBudget(cost=10**400),
    lambda: campaign().tell(None, 1.0),
    lambda: causal.load_default_surrogate().with_temperature("1"),
    lambda: guide.create_acquisition_policy(8.5),
    lambda: guide.GRPOConfig(ppo_epochs="4"),
    lambda: guide.GRPOConfig(learning_rate="1"),
    lambda: guide.GRPOTrainer("x"),
):
    try:
        case()
    except (TypeError, ValueError) as error:
        print(type(error).__name__, error)
    else:
        print("nothing")
"""
SAYS = """
TypeError the equation of 'a' is 1.0: give a dict of weights ({} for no parents) or a \
function of parents and noise.
TypeError weight 'a' of 'b' must be a number, not '2'.
TypeError bias of 'a' must be a number, not None.
ValueError noise_scale is 1e+39, too large for float32: take a larger unit.
ValueError a variable needs a name, not 3.
ValueError variables must be given, each once; got ().
ValueError variables must be given, each once; got ('x', 'x').
ValueError values has shape (1, 2), but 1 variables need (n, 1).
ValueError values has 1 rows and intervened 2: give both for every row.
TypeError do(x = 1) has names and the arrays of a model have none: give \
intervention.arrays(variables, D).
TypeError value for 'x' must be a number, not 'high'.
TypeError value for 'x' must be a number, not array([1, 2]).
ValueError value for 'x' is 1e+300, too large for float32: take a larger unit.
TypeError unsupported operand type(s) for |: 'Intervention' and 'dict'
ValueError seed must be an integer >= 0, got -1.
TypeError n must be an integer >= 0, got 1.5.
TypeError intervention must be of class Intervention, such as intervene(x=1.0), got \
{'x': 1.0}.
TypeError d must be an integer >= 1, got 2.5.
ValueError d must go up from the least to the most, got (5, 3).
ValueError pad_to must be >= 5, the most of d, got 4.
TypeError samples must be a table with names, not dict: give Samples.from_frame(frame).
TypeError samples must be a table with names, not ndarray: give \
Samples.observed(names, array).
ValueError edges has shape (3,), but must be (d, d), [parent, child].
TypeError surrogate must be of class Surrogate, got 's.fxz'.
TypeError samples must be a table with names, not dict: give Samples.from_frame(frame).
ValueError steps must be >= 1, got 0.
ValueError forbidden_sets holds 'xz': write a set of names, ('xz',).
ValueError sets holds 'xz': write a set of names, ('xz',).
ValueError forbidden holds 'xz', which is not an edge: write (cause, effect).
ValueError required holds ('x', 'z', 'y'), which is not an edge: write (cause, effect).
TypeError variables must be a mapping from names to pairs, such as {'x': (0.0, 1.0)}, \
got ['x', 'z'].
ValueError variables['x'] must be a pair (least, greatest) of numbers, got 2.0.
ValueError variables['x'] must be a pair (least, greatest) of numbers, got (0, 1, 2).
ValueError variables['x'] must be a pair (least, greatest) of numbers, got ['Pd', \
'Ni', 'Cu']: give names of levels as Categorical(...).
ValueError variables['x'] must be a pair (least, greatest) of numbers, got ('0', '1').
ValueError variables['x'] must be a pair (least, greatest) of numbers, got (None, 1).
ValueError constraints['z'] must be a pair (least, greatest) of numbers, got 1.0.
TypeError seed must be an integer >= 0, got 1.5.
TypeError policy must be a function of an outlook and a generator, got 'greedy': \
leave it out for the expected improvement.
TypeError minimize must be True or False, got 'no'.
ValueError values must be two finite numbers or more, got ('1', '2').
ValueError values must be two finite numbers or more, got (True, 2).
ValueError log_range must be (least, greatest), from 1.2e-38, got ('1', 10.0): \
a range that holds 0 is a plain pair.
ValueError max_parents must be an integer >= 0, got -1.
TypeError max_parents must be an integer >= 0, got 1.5.
ValueError prior_rows must be a finite number > 0, got 0.0.
TypeError samples must be of class Samples, such as Samples.from_frame(frame), got \
{'x': [1.0]}.
TypeError cost must be a number, got '5' of type str.
TypeError costs['a'] must be a number, got '1' of type str.
ValueError cost must be > 0 and finite, got 10000000000000000000.
TypeError got None, which is not an experiment (ask returns None once the budget is \
spent): pass one that ask returned, or its number.
TypeError temperature must be a finite number > 0, got '1'.
TypeError hidden_dim must be an integer >= 1, got 8.5.
TypeError ppo_epochs must be an integer >= 1, got '4'.
TypeError learning_rate must be a finite number > 0, got '1'.
TypeError policy must be of class AcquisitionPolicy, got 'x'.
"""


def test_an_error_names_the_value_and_its_place_without_a_type_checker():
    ran = forked.python(CODE)
    assert ran.stdout == SAYS.replace("\\\n", "").lstrip(), ran.stderr
