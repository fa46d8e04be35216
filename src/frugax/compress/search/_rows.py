"""Decide for a tensor whether the steps of its rows follow the rows' sizes.

Steps of rows move error from small rows to large ones. Rows of embedding tables are
compared with each other by their angles, so that relative errors count. Rows of a dense
layer are summed, so that absolute ones do.
"""

import dataclasses
import math

import numpy as np

from ..arrays import release
from ..codecs import RowScaling, grid, row_length
from ._columns import column_saving
from ._source import Source

# Steps follow the size of a row to this power; of a table, of so many rows to a column,
# to the second. Of five powers in quarters it keeps most neighbours of four tables, by
# angles and by dot products together (benchmarks/compress_scales.py at commit
# 043be658; its table is in docs/compress.md of commit 5ecbd403).
_ROW_POWER, _TABLE_POWER = 0.5, 0.75
_TABLE_ROWS = 6
# A row is among the nearest of others in proportion to its size to some power. In
# tables that are compared by angles it is -0.05 to 0.45, in dense layers and in tables
# whose large rows are the near ones 1.3 to 2.8.
_MAX_NEAR_POWER = 0.5
_ROWS, _QUERIES, _NEAREST, _BINS = 4096, 1024, 10, 16
# Unit rows are integers of this unit, whose products are exact in float32 in any order
# of summation: the same choice on every machine.
_UNIT = 2.0**11


def scale_rows(source: Source) -> Source:
    """Give the rows of a tensor scales that follow their sizes to a power."""
    power = _TABLE_POWER if _is_table(source) else _ROW_POWER
    flat = source.array.reshape(-1)
    lanes = grid.LaneLayout.of_rows(flat.size, row_length(source.array.shape))
    squares = grid.sum_run_squares(flat, lanes) / lanes.run_lengths
    release(source.array)
    # Around the geometric mean scales take bits from some rows for others, and not from
    # other tensors.
    squares = squares[squares > 0]
    typical = math.exp(np.log(squares).mean() / 2) if len(squares) else source.rms
    return dataclasses.replace(source, scaling=RowScaling(power, typical))


def scale_table_if_compared(source: Source) -> Source:
    """Give a table scales of rows if its rows are near each other whatever their size.

    And if the scales save more than they cost, and more than coding by columns.
    """
    if not (_is_table(source) and source.quantisable):
        return source
    scaled = scale_rows_if_worth(source)
    if scaled is source or near_power(source.array) > _MAX_NEAR_POWER:
        return source
    return scaled


def scale_rows_if_worth(source: Source) -> Source:
    """Give the rows of a tensor scales where these save more than they cost."""
    if not (source.quantisable and source.can_scale) or source.small:
        return source
    scaled = scale_rows(source)
    assert isinstance(scaled.scaling, RowScaling)
    flat = source.array.reshape(-1)
    lanes = grid.LaneLayout.of_rows(flat.size, row_length(source.array.shape))
    exponents = scaled.scaling.exponents(flat, lanes)
    release(source.array)
    weights = grid.run_scales(exponents) ** -2.0
    # One step for all rows makes the error of each alike. At high rate scales save half
    # the logarithm of the mean of the weights over their geometric mean, in bits.
    shares = lanes.run_lengths / flat.size
    saved = math.log2(shares @ weights) - float(shares @ np.log2(weights))
    cost = 8 * len(grid.pack_exponents(exponents)) / flat.size
    return scaled if saved / 2 - cost > column_saving(source) else source


def near_power(table: np.ndarray) -> float:
    """Return the power of its size that a row is among the nearest of others by.

    Counted is how often each of some rows is among the ten rows of the smallest angles
    to another, and the slope of its logarithm over that of the norm is fitted to means
    of sixteen groups of rows of like norm.
    """
    at = np.linspace(0, len(table) - 1, min(len(table), _ROWS)).astype(np.intp)
    rows = table[at].astype(np.float32)
    release(table)
    sizes = np.linalg.norm(rows.astype(np.float64), axis=1)
    rows, sizes = rows[sizes > 0], sizes[sizes > 0]
    if len(rows) <= max(_NEAREST, _BINS):
        return 0.0
    units = np.rint(rows * (_UNIT / sizes[:, None])).astype(np.float32)
    asking = np.linspace(0, len(rows) - 1, min(len(rows), _QUERIES)).astype(np.intp)
    products = units[asking] @ units.T
    products[np.arange(len(asking)), asking] = -np.inf  # not near itself
    near = np.argpartition(-products, _NEAREST, axis=1)[:, :_NEAREST]
    often = np.bincount(near.reshape(-1), minlength=len(rows)) / near.size * len(rows)
    bins = np.array_split(np.argsort(sizes, kind="stable"), _BINS)
    logs = np.array([np.log(sizes[rank]).mean() for rank in bins])
    # A twentieth of a row's share, so that a group that is never near has a logarithm.
    counts = np.log([often[rank].mean() + 0.05 for rank in bins])
    spread = logs - logs.mean()
    return float(spread @ counts / max(spread @ spread, 1e-12))


def _is_table(source: Source) -> bool:
    shape = source.array.shape
    return len(shape) == 2 and shape[0] >= _TABLE_ROWS * shape[1]
