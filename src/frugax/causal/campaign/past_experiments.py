"""Read a table of past experiments from a CSV file, with units and names of levels."""

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from frugax.causal.data import (
    Samples,
    as_float32,
    counts_rows,
    is_missing,
    parse_number,
    read_csv_columns,
    suggest_number,
)

from ._answers import encode_settings
from ._settings import CampaignSettings
from .actions import Action, Binary, Categorical

# `temperature [K]` or `temperature (K)`.
_HEADER = re.compile(r"(?P<name>.*\S)\s*(?:\[(?P<square>.+)\]|\((?P<round>.+)\))")
# Factor and offset from each unit to one of its kind: base = factor * (x + offset).
_TEMPERATURE = {"K": (1, 0), "°C": (1, 273.15), "°F": (5 / 9, 459.67)}
_KINDS = {
    "time": {"ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400},
    "mass": {"ng": 1e-9, "µg": 1e-6, "mg": 1e-3, "g": 1, "kg": 1e3, "t": 1e6},
    "volume": {"nL": 1e-9, "µL": 1e-6, "mL": 1e-3, "cL": 1e-2, "dL": 0.1, "L": 1}
    | {"mm³": 1e-6, "cm³": 1e-3, "dm³": 1, "m³": 1e3},
    "length": {"nm": 1e-9, "µm": 1e-6, "mm": 1e-3, "cm": 1e-2, "m": 1, "km": 1e3},
    "area": {"mm²": 1e-6, "cm²": 1e-4, "m²": 1, "ha": 1e4},
    "amount": {"nmol": 1e-9, "µmol": 1e-6, "mmol": 1e-3, "mol": 1},
    "pressure": {"Pa": 1, "mbar": 100, "hPa": 100, "kPa": 1e3, "bar": 1e5, "MPa": 1e6}
    | {"atm": 101325, "Torr": 101325 / 760, "psi": 6894.757},
    "share": {"1": 1, "%": 1e-2, "‰": 1e-3, "ppm": 1e-6},
    "power": {"mW": 1e-3, "W": 1, "kW": 1e3},
    "energy": {"J": 1, "kJ": 1e3, "kcal": 4184},
}
_PLAIN = {u: (k, float(f)) for k, units in _KINDS.items() for u, f in units.items()}
# Units that stand for a ratio of others.
_RATIOS = {"nM": "nmol/L", "µM": "µmol/L", "mM": "mmol/L", "M": "mol/L"}
_SPELLINGS = {"degC": "°C", "C": "°C", "degF": "°F", "F": "°F", "hr": "h", "sec": "s"}
_SPELLINGS |= {"torr": "Torr", "day": "d", "days": "d", "hour": "h", "minute": "min"}
_SPELLINGS |= {"second": "s", "seconds": "s", "cc": "cm³"}
_SPELLINGS |= {"kelvin": "K", "celsius": "°C", "hours": "h", "minutes": "min"}
_SPELLINGS |= {name.capitalize(): _SPELLINGS[name] for name in ("kelvin", "celsius")}
# Texts that say whether a switch is on.
_ON, _OFF = ("true", "yes", "on", "1", "1.0"), ("false", "no", "off", "0", "0.0")
SWITCHES = {**{text: True for text in _ON}, **{text: False for text in _OFF}}


def read_past_experiments(
    path: str | os.PathLike[str],
    settings: CampaignSettings,
    *,
    units: Mapping[str, str] | None = None,
    intervened: str | Sequence[str] | None = None,
    delimiter: str | None = None,
) -> Samples:
    """Read rows of observations and past experiments.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not such a table, or a unit cannot be converted.
    """
    columns, found, units = dict[str, list[Any]](), dict[str, str](), units or {}
    variables = settings.variables
    read = read_csv_columns(path, delimiter, are_natural=intervened is None)
    for header, cells in read.items():
        match = _HEADER.fullmatch(header)
        name = header
        # A variable may itself be called `yield (%)`.
        if match and header not in settings.named:
            name = match["name"]
            found[name] = match["square"] or match["round"]
        if name in columns:
            raise ValueError(f"{path}: two columns are called {name!r}: rename one.")
        action = variables.get(name)
        if action is None and all(is_missing(c) or _is_switch(c) for c in cells):
            action = Binary()
        columns[name] = [_read_cell(cell, action) for cell in cells]
    left_out = {
        name: why
        for name, cells in columns.items()
        if name not in settings.named
        and name != intervened
        and (why := _find_useless(cells, name))
    }
    if left_out:
        # Dates, notes and numbers of samples, which every laboratory's table has.
        listed = ", ".join(f"{name} ({why})" for name, why in left_out.items())
        warnings.warn(
            f"{path}: left out {listed:.300}, as the campaign does not name it.",
            stacklevel=3,
        )
    columns = {n: cells for n, cells in columns.items() if n not in left_out}
    for name, unit in units.items():
        if name not in found:
            what = f"there are only the columns {', '.join(columns):.200}."
            if name in columns:
                what = f"its header has no unit: write '{name} [{unit}]' if it is that."
            raise ValueError(f"{path}: units names {name!r}, but {what}")
    for name, unit in found.items():
        # Another file may have another unit, and ranges have none.
        if name in settings.named and name not in units:
            raise ValueError(
                f"{path}: {name!r} is in {unit!r}: state the unit of this campaign, "
                f"such as units = {{{name!r}: {unit!r}}}."
            )
    marks = intervened if isinstance(intervened, str) else None
    try:
        rows = Samples.from_frame(encode_settings(columns, variables), intervened=marks)
        values = rows.values.astype(np.float64)
        for name, unit in units.items():
            j = rows.index(name)
            values[:, j] = convert(values[:, j], found[name], unit, name)
        mask = rows.intervened
        if marks is None and intervened is not None:
            for name in intervened:
                rows.index(name)
            mask = np.tile([n in intervened for n in rows.variables], (len(rows), 1))
        return Samples(rows.variables, values, mask)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _is_switch(cell: str) -> bool:
    return cell.strip().lower() in SWITCHES


def _find_useless(cells: Sequence[Any], name: str) -> str:
    """Return why a column that the campaign does not name is not read; "" if it is.

    A number that is not written as one, such as 1,500, is not left out but refused.
    """
    if counts_rows(cells):
        return "numbers of rows"
    for cell in cells:
        if parse_number(cell) is None and not suggest_number(cell):
            return f"{cell!r:.40} is not a number"
    numbers = [parse_number(cell) for cell in cells]
    if None not in numbers:
        try:
            as_float32(np.array(numbers, float)[:, None], [name])
        except ValueError:  # such as numbers of orders, or times in seconds
            return "its values differ by less than float32 can hold"
    return ""


def _read_cell(cell: str, action: Action | None) -> Any:
    """Read the level of a switch or a category; other cells stay text."""
    text = cell.strip()
    # A level may be called "none".
    is_level = isinstance(action, Categorical) and text in action.levels
    if is_missing(text) and not is_level:
        return None
    return SWITCHES.get(text.lower(), text) if isinstance(action, Binary) else text


def convert(values: np.ndarray, unit: str, wanted: str, name: str) -> np.ndarray:
    """Convert values of a variable to another unit.

    Raises:
        ValueError: a unit is unknown, or both are of different kinds.
    """
    one, other = map(_spell, (unit, wanted))
    if one == other:
        return values
    if one in _TEMPERATURE and other in _TEMPERATURE:
        (factor, offset), (per, zero) = _TEMPERATURE[one], _TEMPERATURE[other]
        return (values + offset) * (factor / per) - zero
    sizes = _measure(one), _measure(other)
    if sizes[0] is not None and sizes[1] is not None and sizes[0][0] == sizes[1][0]:
        return values * (sizes[0][1] / sizes[1][1])
    raise ValueError(
        f"{name!r} is in {unit!r}, which cannot be converted to {wanted!r}: convert "
        "the column, or write both units in the same way."
    )


def _measure(unit: str) -> tuple[tuple[str, ...], float] | None:
    """Return the kind of a unit and its size; None if it is unknown.

    A ratio, such as kg/m³, has the kinds of its parts.
    """
    found = [_PLAIN.get(part) for part in _RATIOS.get(unit, unit).split("/")]
    known = [part for part in found if part is not None]
    if len(known) < len(found) or len(known) > 2:
        return None
    size = known[0][1]
    if len(known) == 2:
        size /= known[1][1]
    return tuple(kind for kind, _ in known), size


def _spell(unit: str) -> str:
    """Return a unit in one way of writing it: `ul` as µL, `kg m-3` as kg/m³."""
    unit = unit.strip()
    if ratio := re.fullmatch(r"(\S+?)[ *·.](\S+?)(?:\^?-([123])|⁻([¹²³]))", unit):
        power = ratio[3] or str("¹²³".index(ratio[4]) + 1)
        unit = f"{ratio[1]}/{ratio[2]}{power if power != '1' else ''}"
    return "/".join(map(_spell_part, unit.split("/")))


def _spell_part(unit: str) -> str:
    unit = unit.strip()
    if unit in _SPELLINGS:
        return _SPELLINGS[unit]
    unit = re.sub(r"(?<=m)\^?([23])$", lambda m: "²³"[int(m[1]) - 2], unit)
    # u and the Greek letter stand for the micro sign.
    if unit[:1] in ("u", "\u03bc") and unit[1:]:
        unit = "\u00b5" + unit[1:]
    # A litre is l or L, with any prefix.
    if re.fullmatch("[n\u00b5mcd]?l", unit):
        unit = unit[:-1] + "L"
    return unit
