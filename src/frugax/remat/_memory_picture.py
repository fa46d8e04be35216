"""A picture of live bytes over time: the planned program beside the un-planned one.

Reads: both programs, compiled and not run. Gives: a `MemoryPicture`, drawn as SVG
(`_draw_svg.py`) or with the blocks of a terminal's font (`_draw_blocks.py`).
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from frugax import measure
from frugax.budget import MemoryBudget, format_bytes, format_share
from frugax.fileio import write_whole
from frugax.jaxprs import live_bytes, trace

from ._apply import apply
from ._block_chart import draw_blocks
from ._enclosing_program import EnclosingProgram, compile_program
from ._plan import RematPlan
from ._svg_chart import draw_svg


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """What one program holds as it runs.

    Attributes:
        held: bytes while each operation runs, of the budget's kind.
        names: of the operations.
        measured: bytes of that kind as XLA accounts for them.
        counted_on: "compiled": on what XLA made, in its order and with its places in
            memory. "traced": on the program as written, since this backend does not
            tell; XLA reorders and fuses, so that only `measured` is its word.
    """

    held: tuple[int, ...]
    names: tuple[str, ...]
    measured: int
    counted_on: Literal["compiled", "traced"]

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at once."""
        return max(self.held, default=0)

    @property
    def peak_at(self) -> int:
        """The first operation at which that is so; 0 if there are none."""
        return self.held.index(self.peak_bytes) if self.held else 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPicture:
    """Bytes held over time, with a plan and without.

    Attributes:
        budget: the limit, and the kind of memory that is drawn.
        extra_share: flops done a second time, as a share of what has to be done.
        unplanned: the program without a plan.
        planned: with it.
    """

    budget: MemoryBudget
    extra_share: float
    unplanned: MemoryCurve
    planned: MemoryCurve

    @property
    def title(self) -> str:
        """What is shown, in a few words."""
        kind = {"temp": "Temporary memory", "total": "Memory"}[self.budget.kind]
        return f"{kind} held over time"

    @property
    def summary(self) -> str:
        """What the plan does, in one line."""
        return (
            f"{format_bytes(self.planned.measured)} with the plan, "
            f"{format_bytes(self.unplanned.measured)} without; limit "
            f"{format_bytes(self.budget.usable_bytes)}; "
            f"{format_share(self.extra_share)} more flops"
        )

    @property
    def source(self) -> str:
        """What was counted, and how far it can be trusted."""
        curves = (self.unplanned, self.planned)
        if all(c.counted_on == "compiled" for c in curves):
            return "operations of the compiled program, loop bodies once"
        return "operations as traced; only XLA's totals are measured"

    def svg(self) -> str:
        """The picture as an SVG file's text: self-contained, for light and dark."""
        return draw_svg(
            title=self.title,
            summary=self.summary,
            x_label=self.source,
            curves={"without a plan": self.unplanned, "planned": self.planned},
            limit=self.budget.usable_bytes,
        )

    def text(self, *, width: int = 80, height: int = 14) -> str:
        """The picture for a terminal.

        Args:
            width: columns; at least 40.
            height: lines of the plot itself; at least 4.

        Raises:
            ValueError: there is too little room to draw in.
        """
        drawn = draw_blocks(
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
        return "\n".join(
            [self.title, *drawn, f"x: {self.source}", *_fill(legend, width)]
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture to a file, whole or not at all.

        Args:
            path: ends in .svg, or in .txt for the terminal's version.

        Raises:
            ValueError: it ends in something else.
            OutputError: it cannot be written.
        """
        target = Path(path)
        if target.suffix not in (".svg", ".txt"):
            raise ValueError(
                f"{target}: a picture is saved as .svg, or as .txt for its blocks; "
                f"got {target.suffix or 'no ending'}."
            )
        drawn = self.svg() if target.suffix == ".svg" else self.text() + "\n"
        write_whole(target, drawn)
        return target


def draw_memory(
    loss: Callable[..., Any],
    plan: RematPlan,
    example_args: Sequence[Any],
    *,
    within: EnclosingProgram | None = None,
) -> MemoryPicture:
    """Compile a loss's gradient with and without its plan; see what each holds when.

    Nothing is run.

    Args:
        loss: the function that the plan was made for.
        plan: what `plan` gave.
        example_args: its arguments; arrays or `jax.ShapeDtypeStruct`.
        within: the program that the plan was made for, if it was given to `plan`.

    Raises:
        ValueError: the loss or the shapes are not those of the plan.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from frugax import MemoryBudget, remat
        >>> def loss(w, x):
        ...     for _ in range(8):
        ...         x = jnp.tanh(x @ w)
        ...     return jnp.mean(x**2)
        >>> w, x = jnp.ones((64, 64)), jnp.ones((512, 64))
        >>> plan = remat.plan(loss, MemoryBudget("800KiB"), example_args=(w, x))
        >>> drawn = remat.draw_memory(loss, plan, (w, x))
        >>> drawn.planned.peak_bytes <= 800 * 1024 < drawn.unplanned.peak_bytes
        True
    """
    args = tuple(example_args)
    whole = within or EnclosingProgram(build=lambda grad: grad, args=args)
    plain = jax.value_and_grad(loss, plan.argnums, has_aux=plan.has_aux)
    kind = plan.budget.kind
    return MemoryPicture(
        budget=plan.budget,
        extra_share=plan.extra_share,
        unplanned=_curve(whole, plain, kind),
        planned=_curve(whole, apply(loss, plan), kind),
    )


def _curve(
    whole: EnclosingProgram,
    grad: Callable[..., Any],
    kind: Literal["temp", "total"],
) -> MemoryCurve:
    compiled = compile_program(whole, grad).compiled
    costs = measure.program(compiled)
    measured = costs.bytes_of(kind)
    try:
        seen = measure.timeline(compiled)
    except ValueError:  # this backend does not tell: the curve says "traced"
        graph = trace(whole.build(grad), whole.args)
        always = costs.argument_bytes if kind == "total" else 0
        return MemoryCurve(
            held=tuple(always + b for b in live_bytes(graph)),
            names=tuple(e.primitive.name for e in graph.eqns),
            measured=measured,
            counted_on="traced",
        )
    always = measured - costs.temp_bytes
    return MemoryCurve(
        held=tuple(always + b for b in seen.bytes),
        names=seen.names,
        measured=measured,
        counted_on="compiled",
    )


def _fill(parts: Sequence[str], width: int) -> list[str]:
    """As many parts on a line as it holds."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 <= width:
            lines[-1] += "   " + part
        else:
            lines.append(part)
    return lines
