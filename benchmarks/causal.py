"""The benchmarks of `frugax.causal`, one after the other; hours in all.

    python -m benchmarks.causal
    python -m benchmarks.causal structure optimise

Each prints its table, and says at its head what it needs: peers are left out where they
are not installed. Not among them are those that leave files for you: `causal_train`
trains the shipped surrogate and `causal_policy` a policy.
"""

from benchmarks.one_by_one import run

if __name__ == "__main__":
    run(
        "causal",
        ("structure", "optimise", "campaigns", "data"),
        "The benchmarks of frugax.causal.",
    )
