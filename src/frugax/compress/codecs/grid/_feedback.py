"""Error feedback as in GPTQ: rows quantised later make up for errors of earlier ones.

With the second moments H of the inputs that rows of a matrix are multiplied by, errors
E of its weights change the outputs by tr(E^T H E). Write H = M^T D M, where M is block
lower triangular with ones on its diagonal, and D block diagonal. Rows are quantised
block by block. Each target is moved by M times the errors so far, so that only the
rounding errors Q of the moved targets count: tr(Q^T D Q).

A block is a *stage*: one run of many lanes at once, because the trellis walks along a
lane. Rows of one stage do not move each other.

References:
    Frantar et al. 2023, arXiv:2210.17323 (GPTQ); Chee et al. 2023, arXiv:2307.13304
    (LDLQ, the same in closed form, and its blocks).
"""

import dataclasses

import numpy as np

# More stages gain little: each takes as many steps as a run has numbers.
_STAGES = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """Runs that are quantised at once.

    Attributes:
        first: the step of their lanes that they start at.
        lanes: the lanes.
        runs: the run of each of these lanes.
        rows: the rows that these runs are made of, or that they are pieces of.
        before: the rows of all earlier stages.
        matrix: `(rows, before)`, float32: times the errors of earlier rows, it is
            subtracted from the rows of the stage.
    """

    first: int
    lanes: np.ndarray
    runs: np.ndarray
    rows: np.ndarray
    before: np.ndarray
    matrix: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Feedback:
    """The stages of a chunk of whole rows.

    Attributes:
        row: how many numbers are in a row.
        stages: in their order.
    """

    row: int
    stages: tuple[Stage, ...]

    @classmethod
    def factor(
        cls, gram: np.ndarray, *, row: int, run: int, lane: int
    ) -> "tuple[Feedback, np.ndarray]":
        """Return the feedback of a matrix H, positive definite, and the diagonal of D.

        Args:
            gram: H, `(rows, rows)`, float64.
            row: how many numbers are in a row; divides `run`, or is divided by it.
            run: how many numbers are in a run; divides all of the numbers.
            lane: how many numbers are in a lane; as many as in a run where these are
                pieces of rows.
        """
        plain = _list_stages(len(gram), row=row, run=run, lane=lane)
        order = np.concatenate([stage.rows for stage in plain])
        # The Cholesky factor from the last row to the first, which is upper triangular.
        turned = gram[np.ix_(order[::-1], order[::-1])]
        upper = np.linalg.cholesky(turned)[::-1, ::-1]
        root = np.diag(upper)
        lower = (upper / root).T
        diagonal = np.empty(len(gram))
        stages: list[Stage] = []
        start = 0
        for stage in plain:
            rows = slice(start, start + len(stage.rows))
            own = lower[rows, rows]
            matrix = np.linalg.solve(own, lower[rows, :start]).astype(np.float32)
            diagonal[stage.rows] = ((own * root[rows, None]) ** 2).sum(axis=0)
            before = order[:start]
            stages.append(dataclasses.replace(stage, before=before, matrix=matrix))
            start = rows.stop
        return cls(row, tuple(stages)), diagonal


def _list_stages(count: int, *, row: int, run: int, lane: int) -> list[Stage]:
    """Return the stages of `count` rows, without their matrices."""
    none, empty = np.zeros(0, np.intp), np.zeros((0, 0), np.float32)
    stages: list[Stage] = []
    if run < row:  # pieces of rows, each a lane
        each = row // run
        groups = min(count, _STAGES)
        for group in range(groups):
            rows = np.arange(group, count, groups)
            runs = (rows[:, None] * each + np.arange(each)).reshape(-1)
            stages.append(Stage(0, runs, runs, rows, none, empty))
        return stages
    rows_each, phases = run // row, lane // run
    runs_count = count // rows_each
    lanes_count = -(-runs_count // phases)
    # The lanes of one group are far from each other: neighbours are often alike.
    groups = min(lanes_count, -(-_STAGES // phases))
    for phase in range(phases):
        for group in range(groups):
            lanes = np.arange(group, lanes_count, groups)
            runs = lanes * phases + phase
            lanes, runs = lanes[runs < runs_count], runs[runs < runs_count]
            if len(runs):
                rows = (runs[:, None] * rows_each + np.arange(rows_each)).reshape(-1)
                stages.append(Stage(phase * run, lanes, runs, rows, none, empty))
    return stages
