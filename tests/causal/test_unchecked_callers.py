"""Errors for callers without a type checker: the same, with the value and its place."""

import forked

# In its own process: in this one every call is type-checked before it is made.
CODE = """
import numpy as np
from frugax import ExperimentBudget, causal as fc
from frugax.causal import SCM, Samples
from frugax.causal.campaign import Grid, Logarithmic
from frugax.causal.posterior import DiscretePosterior as Discrete
from frugax.compat import causal_training as guide
from refusals import refuses

scm = SCM.linear({"x": {}, "y": {"x": 1.0}})
surrogate = fc.load_default_surrogate()
no = lambda n, d: np.zeros((n, d), bool)
campaign = lambda variables={"x": (-2, 2), "z": (-3, 3)}, **more: fc.Campaign(
    variables=variables,
    target="y",
    budget=ExperimentBudget(n=1),
    **more,
)
of_types = (
    (lambda: SCM.create({"a": 1.0}), "'a'", "1.0"),
    (lambda: SCM.linear({"a": {}, "b": {"a": "2"}}), "'a'", "'b'", "'2'"),
    (lambda: SCM.linear({"a": {}}, bias={"a": None}), "'a'", "None"),
    (lambda: fc.intervene(x="high"), "'x'", "'high'"),
    (lambda: fc.intervene(x=np.array([1, 2])), "'x'"),
    (lambda: fc.intervene(x=1.0) | {"y": 1.0}, "Intervention"),
    (lambda: fc.sample(scm, 1.5, seed="a"), "n", "1.5"),
    (lambda: fc.sample(scm, 3, seed=0, intervention={"x": 1.0}), "intervention"),
    (lambda: fc.generate_scm("chain", 2.5, seed=0), "d", "2.5"),
    (lambda: surrogate.edge_probabilities({"x": [1.0]}), "samples", "dict"),
    (lambda: surrogate.edge_probabilities(np.zeros((60, 3))), "samples", "ndarray"),
    (lambda: fc.save_surrogate(scm, "s.fxz"), "surrogate"),
    (lambda: guide.create_training_batch({"x": [1.0]}, scm, 2), "samples", "dict"),
    (lambda: campaign(["x", "z"]), "variables", "['x', 'z']"),
    (lambda: campaign(seed=1.5), "seed", "1.5"),
    (lambda: campaign(policy="greedy"), "policy", "'greedy'"),
    (lambda: campaign(minimize="no"), "minimize", "'no'"),
    (lambda: Discrete(max_parents=1.5), "max_parents", "1.5"),
    (lambda: Discrete().edges({"x": [1.0]}), "samples"),
    (lambda: ExperimentBudget(cost="5"), "cost", "'5'"),
    (lambda: ExperimentBudget(n=1, costs={"a": "1"}), "costs['a']", "'1'"),
    (lambda: campaign().tell(None, 1.0), "None"),
    (lambda: surrogate.with_temperature("1"), "temperature", "'1'"),
    (lambda: guide.create_acquisition_policy(8.5), "hidden_dim", "8.5"),
    (lambda: guide.GRPOConfig(ppo_epochs="4"), "ppo_epochs", "'4'"),
    (lambda: guide.GRPOConfig(learning_rate="1"), "learning_rate", "'1'"),
    (lambda: guide.GRPOTrainer("x"), "policy", "'x'"),
)
of_values = (
    (lambda: SCM.linear({"a": {}}, noise_scale=1e39), "noise_scale", "1e+39"),
    (lambda: SCM.linear({3: {}}), "3"),
    (lambda: Samples((), np.zeros((1, 0)), no(1, 0)), "variables"),
    (lambda: Samples(("x", "x"), np.zeros((1, 2)), no(1, 2)), "('x', 'x')"),
    (lambda: Samples(("x",), np.zeros((1, 2)), no(1, 1)), "values", "(1, 2)"),
    (lambda: Samples(("x",), np.zeros((1, 1)), no(2, 1)), "1", "2"),
    (lambda: fc.intervene(x=1e300), "'x'", "1e+300"),
    (lambda: fc.sample(scm, 3, seed=-1), "seed", "-1"),
    (lambda: fc.generate_batch(1, d=(5, 3), seed=0), "d", "(5, 3)"),
    (lambda: fc.generate_batch(1, d=(3, 5), pad_to=4, seed=0), "pad_to", "4"),
    (lambda: fc.select_graph(np.zeros(3)), "edges", "(3,)"),
    (lambda: fc.train_surrogate(seed=0, steps=0), "steps", "0"),
    (lambda: campaign(forbidden_sets=["xz"]), "forbidden_sets", "'xz'"),
    (lambda: campaign(sets=["xz"]), "sets", "'xz'"),
    (lambda: campaign(forbidden=["xz"]), "forbidden", "'xz'"),
    (lambda: campaign(required=[("x", "z", "y")]), "required", "('x', 'z', 'y')"),
    (lambda: campaign({"x": 2.0}), "'x'", "2.0"),
    (lambda: campaign({"x": (0, 1, 2)}), "'x'", "(0, 1, 2)"),
    (lambda: campaign({"x": ["Pd", "Ni", "Cu"]}), "'x'", "Categorical"),
    (lambda: campaign({"x": ("0", "1")}), "'x'", "('0', '1')"),
    (lambda: campaign({"x": (None, 1)}), "'x'", "(None, 1)"),
    (lambda: campaign(constraints={"z": 1.0}), "'z'", "1.0"),
    (lambda: Grid(("1", "2")), "('1', '2')"),
    (lambda: Grid((True, 2)), "(True, 2)"),
    (lambda: Logarithmic(("1", 10.0)), "log_range", "('1', 10.0)"),
    (lambda: Discrete(max_parents=-1), "max_parents", "-1"),
    (lambda: Discrete(prior_rows=0.0), "prior_rows", "0.0"),
    (lambda: ExperimentBudget(cost=10**400), "cost"),
)
for error, cases in ((TypeError, of_types), (ValueError, of_values)):
    for case, *named in cases:
        with refuses(error, *named):
            case()
"""


def test_an_error_names_the_value_and_its_place_without_a_type_checker():
    ran = forked.python(CODE)
    assert ran.returncode == 0, ran.stderr
