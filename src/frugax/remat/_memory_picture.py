"""`draw_memory`: the memory of a gradient over time, with and without its plan."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from frugax import measure
from frugax.budget import MemoryBudget, format_bytes, format_share
from frugax.jaxprs import live_bytes, take_arrays, trace

from ._apply import apply
from ._enclosing_program import EnclosingProgram, compile_program
from ._memory_charts import MemoryCurve, draw_blocks, draw_svg, save_picture
from ._plan import RematPlan


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPicture:
    """Bytes held over time, with a plan and without; made by `draw_memory`.

    Attributes:
        budget: the limit, and the kind of memory that is drawn.
        extra_share: recomputed flops as a share of the flops without a plan.
        unplanned: the program without a plan.
        planned: the program with the plan.
    """

    budget: MemoryBudget
    extra_share: float
    unplanned: MemoryCurve
    planned: MemoryCurve

    @property
    def title(self) -> str:
        """The heading."""
        kind = {"temp": "Temporary memory", "total": "Memory"}[self.budget.kind]
        return f"{kind} held over time"

    @property
    def summary(self) -> str:
        """The effect of the plan in one line."""
        return (
            f"{format_bytes(self.planned.measured)} with the plan, "
            f"{format_bytes(self.unplanned.measured)} without; limit "
            f"{format_bytes(self.budget.usable_bytes)}; "
            f"{format_share(self.extra_share)} more flops"
        )

    @property
    def source(self) -> str:
        """The operations that were counted, and how far they can be trusted."""
        curves = (self.unplanned, self.planned)
        if all(c.counted_on == "compiled" for c in curves):
            return "operations of the compiled program, loop bodies once"
        return "operations as traced; only XLA's totals are measured"

    def svg(self) -> str:
        """The text of an SVG file, self-contained, for light and dark themes."""
        return draw_svg(
            title=self.title,
            summary=self.summary,
            x_label=self.source,
            curves={"without a plan": self.unplanned, "planned": self.planned},
            limit=self.budget.usable_bytes,
        )

    _repr_svg_ = svg  # notebooks show it

    def text(self, *, width: int = 80, height: int = 14) -> str:
        """The picture for a terminal.

        Args:
            width: columns; at least 40.
            height: lines of the plot itself; at least 4.

        Raises:
            ValueError: `width` is less than 40, or `height` less than 4.
        """
        plot = draw_blocks(
            planned=self.planned.held,
            unplanned=self.unplanned.held,
            limit=self.budget.usable_bytes,
            width=width,
            height=height,
        )
        legend = [
            f"█ planned, at most {format_bytes(self.planned.peak_bytes)}",
            f"░ without, {format_bytes(self.unplanned.peak_bytes)}",
            f"┄ limit, {format_bytes(self.budget.usable_bytes)}",
        ]
        lines = [legend[0]]
        for entry in legend[1:]:
            if len(lines[-1]) + len(entry) + 3 <= width:
                lines[-1] += "   " + entry
            else:
                lines.append(entry)
        return "\n".join([self.title, *plot, f"x: {self.source}", *lines])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture to a file, whole or not at all.

        Args:
            path: ends in .svg, or in .txt for the terminal's version.

        Raises:
            ValueError: `path` ends in something else.
            OutputError: the file cannot be written.
        """
        return save_picture(path, svg=self.svg, text=self.text)


def draw_memory(
    loss: Callable[..., Any],
    plan: RematPlan,
    example_args: Sequence[Any],
    *,
    within: EnclosingProgram | None = None,
) -> MemoryPicture:
    """Compile a loss's gradient with and without its plan, and compare their memory.

    Nothing is run.

    Args:
        loss: the function that the plan was made for.
        plan: the result of `remat.plan`.
        example_args: the loss's arguments; arrays or `jax.ShapeDtypeStruct`.
        within: the enclosing program that the plan was made for, if there was one.

    Raises:
        ValueError: the loss or the shapes differ from those of the plan.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from frugax import MemoryBudget, remat
        >>> def loss(w, x):
        ...     for _ in range(8):
        ...         x = jnp.tanh(x @ w)
        ...     return jnp.mean(x**2)
        >>> w, x = jnp.ones((64, 64)), jnp.ones((512, 64))
        >>> plan = remat.plan(loss, MemoryBudget("800KiB"), example_args=(w, x))
        >>> picture = remat.draw_memory(loss, plan, (w, x))
        >>> picture.planned.peak_bytes <= 800 * 1024 < picture.unplanned.peak_bytes
        True
    """
    taken = take_arrays(loss, example_args, plan.argnums, has_aux=plan.has_aux)
    program = EnclosingProgram.around(within, taken.args)
    program = program.on_target_of(plan.target, plan.platform)
    # Compiled without gates, as a user would: the comparison is with the plain program.
    plain = jax.value_and_grad(taken.loss, taken.argnums, has_aux=taken.has_aux)
    planned = apply(taken.loss, dataclasses.replace(plan, has_aux=taken.has_aux))
    kind = plan.budget.kind
    return MemoryPicture(
        budget=plan.budget,
        extra_share=plan.extra_share,
        unplanned=_count(program, plain, kind),
        planned=_count(program, planned, kind),
    )


def _count(
    program: EnclosingProgram,
    grad: Callable[..., Any],
    kind: Literal["temp", "total"],
) -> MemoryCurve:
    executable = compile_program(program, grad).executable
    costs = measure.program(executable)
    measured = costs.bytes_of(kind)
    try:
        timeline = measure.timeline(executable)
    except ValueError:  # this backend keeps the order to itself: count the trace
        graph = trace(program.build_around(grad), program.args)
        held, names = live_bytes(graph), tuple(e.primitive.name for e in graph.eqns)
        always = costs.argument_bytes if kind == "total" else 0
        counted_on = "traced"
    else:
        held, names, counted_on = timeline.bytes, timeline.names, "compiled"
        # Arguments and results, which exist from the start to the end.
        always = measured - costs.temp_bytes
    return MemoryCurve(
        held=tuple(always + b for b in held),
        names=names,
        measured=measured,
        counted_on=counted_on,
    )
