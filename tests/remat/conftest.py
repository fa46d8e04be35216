"""Plans that several files of tests look at, made once."""

import pytest

from frugax import MemoryBudget, remat
from remat.checks import plan_whole
from remat.nets import SHAPES, chain


@pytest.fixture(scope="session")
def chain_plan() -> remat.RematPlan:
    """The chain within about three quarters of its memory, by recomputation."""
    return plan_whole(chain, MemoryBudget("800KiB"), example_args=SHAPES)
