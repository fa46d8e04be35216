"""Trace a module by torch.export, once for each way that data may take through it."""

import collections
import dataclasses
import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanFunction
from torch._decomp import decomposition_table  # noqa: PLC2701 - it has no public name
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree  # noqa: PLC2701 - the same

from frugax.errors import UnsupportedModuleError
from frugax.models.aten import find_function

from ._masked_rows import rewrite_masked_rows
from ._traced_calls import Question, TracedCalls
from ._traced_module import (
    TracedModule,
    attributes_stay,
    ignore_own_casts,
    split_outputs,
)
from ._traced_nodes import first_line, is_raised_by_others, place_of_error

# How much of the shapes of inputs stays free, from most to least.
FREEDOMS = ("all axes", "batch", "none")


@dataclasses.dataclass(frozen=True)
class Program:
    """A module, traced with some answers to its questions about data.

    Attributes:
        exported: of `torch.export`. Its last outputs are what the questions are about.
        questions: the questions in the order in which they are asked.
        has_masked_rows: whether it selects rows by a mask.
    """

    exported: Any
    questions: tuple[Question, ...]
    has_masked_rows: bool


@dataclasses.dataclass(frozen=True)
class Branch:
    """A module that computes one of two things, as data say.

    Attributes:
        number: of the question among those of each program.
        place: the source line that asks it.
        yes: the program, or again programs, where the answer is yes.
        no: those where it is no.
    """

    number: int
    place: str
    yes: "Program | Branch"
    no: "Program | Branch"


def export_module(traced: TracedModule, freedom: str) -> Program | Branch:
    """Trace a module on all ways that data may take through it.

    Ways that end in an error of the module's own, as those of an assertion, are none.

    Args:
        traced: the module.
        freedom: one of `FREEDOMS`.

    Raises:
        UnsupportedModuleError: torch cannot trace one of them.
    """
    shapes = None
    if freedom != "none":
        given = traced.args, traced.kwargs
        firsts = collections.Counter(len(t) for t in traced.tensors if t.ndim)
        # The most frequent first length, and of those as frequent that of the first.
        batch = next((length for length, _ in firsts.most_common(1)), 0)
        free = pytree.tree_map(
            lambda leaf: _dynamic(leaf, None if freedom == "all axes" else batch), given
        )
        args, kwargs = free
        shapes = tuple(traced.signature.bind(*args, **kwargs).arguments.values())

    def explore(answers: tuple[bool, ...]) -> Program | Branch | Exception:
        """All ways that begin with some answers, or the error that they raise."""
        found, questions = _export(traced, shapes, answers)
        given = tuple(q.answer for q in questions)
        for number in reversed(range(len(answers), len(questions))):
            other = explore((*given[:number], False))
            if isinstance(found, Exception):
                found = other
            elif not isinstance(other, Exception):
                found = Branch(number, questions[number].place, found, other)
        return found

    found = explore(())
    if isinstance(found, Exception):
        traced.run_example()
        raise UnsupportedModuleError(_describe(found))
    return found


def _export(
    traced: TracedModule, shapes: Any, answers: Sequence[bool]
) -> tuple[Program | Exception, tuple[Question, ...]]:
    """Trace a module, or find the error that it raises, and the questions it asks."""
    module = traced.module
    calls = TracedCalls(module, answers)
    forward = module.forward

    @functools.wraps(forward)
    def asking(*args: Any, **kwargs: Any) -> Any:
        with calls:
            outputs, _ = split_outputs(forward(*args, **kwargs))
        return outputs, [q.condition for q in calls.questions.values()]

    asking.__signature__ = traced.signature  # type: ignore[attr-defined]
    problem: Exception | None = None
    exported: Any = None
    try:
        with warnings.catch_warnings(), attributes_stay(module):
            warnings.simplefilter("ignore")  # about torch's own use of its own names
            module.forward = asking
            ignore_own_casts(module)
            args, kwargs = traced.fill(traced.arrays)
            exported = torch.export.export(module, args, kwargs, dynamic_shapes=shapes)
            # With them torch traces its checks of free lengths anew in each
            # decomposition, which takes minutes where windows cut an image.
            exported.example_inputs = None
            exported = _decompose(exported)
    except UnsupportedModuleError:
        raise
    except Exception as e:
        problem = e
    questions = tuple(calls.questions.values())
    if problem is None:
        has_masked_rows = rewrite_masked_rows(exported.graph_module)
        return Program(exported, questions, has_masked_rows), questions
    if questions and is_raised_by_others(problem):
        return problem, questions
    traced.run_example()
    raise UnsupportedModuleError(_describe(problem, questions)) from problem


def _describe(error: Exception, questions: Sequence[Question] = ()) -> str:
    way = remedy = ""
    if questions:
        answer = "yes" if questions[-1].answer else "no"
        way = f", where data say {answer}{questions[-1].place}"
    if isinstance(error, GuardOnDataDependentSymNode):
        remedy = ". It asks for a number that depends on data: use torch.where"
        if not isinstance(error.cond, (Relational, BooleanFunction)):
            remedy = (
                ". It asks for a number that depends on data, as for a length: let "
                "forward take it as a Python number, such as the most that there may be"
            )
    return (
        f"torch.export cannot trace this module{place_of_error(error)}{way}: "
        f"{first_line(error)}{remedy}."
    )


def _dynamic(leaf: Any, batch: int | None) -> Any:
    """The axes of an input whose lengths are free; with a batch, first ones of it."""
    if not isinstance(leaf, torch.Tensor) or leaf.ndim == 0:
        return None
    free, fixed = torch.export.Dim.AUTO, torch.export.Dim.STATIC
    is_free = lambda axis, length: batch is None or (axis == 0 and length == batch)
    return {
        # torch fixes lengths of 0 and 1, with a warning.
        axis: free if length > 1 and is_free(axis, length) else fixed
        for axis, length in enumerate(leaf.shape)
    }


def _decompose(exported: Any) -> Any:
    """Let torch write operations that the table lacks by others, as far as it can.

    The table has what torch does not write by others, or writes worse for JAX: with
    more operations and memory (attention, products, pools, group norms), without free
    lengths (adaptive pools), with NaN or another gradient at bounds and far from 0
    (`celu`, `softplus`, `std`), or by operations outside of ATen (`squeeze`, `var`).
    """
    core = torch.export.default_decompositions()
    known = {**decomposition_table, **{k: core[k] for k in core}}
    table = {
        k: write
        for k, write in known.items()
        # Draws are refused, by the name that the module gives them.
        if table_name(k) is None and not str(k).startswith(_DRAWS)
    }
    # What stands in for an operation may have other strides, which have no such view.
    table[torch.ops.aten.view.default] = torch.ops.aten._reshape_copy.default
    return exported.run_decompositions(table)


_DRAWS = ("aten.rand", "aten.bernoulli", "aten.normal")


# Operations of other packages that are one of ATen's.
_ALIASES = {"transformers::grouped_mm_fallback": "_grouped_mm.default"}


def table_name(target: Any) -> str | None:
    """The name of an operation in the table; None if the table does not have it."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    if target._schema.name in _ALIASES:
        return _ALIASES[target._schema.name]
    if target.namespace != "aten":
        return None
    name = target._schema.name.partition("::")[2]
    name = f"{name}.{target._overloadname}"
    if find_function(name) is None:
        return None
    return name
