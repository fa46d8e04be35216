"""`frugax compare`: verdicts, figures, configs and curves of runs, side by side."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from frugax import watch
from frugax.budget import Receipt, amount, format_bytes, format_seconds, table
from frugax.errors import ConfigError
from frugax.report import Markup, element, fragment, line_chart, page

from ._config_keys import flatten_keys
from ._folder import RunFolder
from ._style import SCRIPT, STYLE

_MAX_LINES = 4  # a chart has as many colours


@dataclasses.dataclass(frozen=True, eq=False)
class RunComparison:
    """Several finished runs side by side.

    Attributes:
        names: the runs' folders.
        rows: figures by name, one text for each run.
        differences: config keys that differ, one text for each run.
        curves: (steps, values) of each run by the name of the metric.
    """

    names: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]
    differences: dict[str, tuple[str, ...]]
    curves: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]

    def __str__(self) -> str:
        rows = {**self.rows, **self.differences}
        body = [[name, *texts] for name, texts in rows.items()]
        return table(["", *self.names], body)

    def to_page(self) -> str:
        """Render the comparison as one HTML file that needs nothing else."""
        charts = [
            line_chart(dict(list(lines.items())[:_MAX_LINES]), title=name).figure()
            for name, lines in self.curves.items()
        ]
        sections = {
            "Budgets and figures": self._render_table(self.rows),
            "What differs in the configs": self._render_table(self.differences),
            "Training": element("div", charts, class_="charts"),
        }
        body = [
            element("section", element("h2", title), content)
            for title, content in sections.items()
        ]
        heading = element("h1", f"{len(self.names)} runs compared")
        return page(
            "frugax compare", fragment(heading, body), style=STYLE, script=SCRIPT
        )

    def _render_table(self, rows: dict[str, tuple[str, ...]]) -> Markup:
        if not rows:
            return element("p", "Nothing.", class_="note")
        head = element(
            "tr", element("th"), [element("th", n, class_="n") for n in self.names]
        )
        lines = [
            element(
                "tr",
                element("td", name),
                [
                    element("td", text, class_="n", data_label=run)
                    for text, run in zip(texts, self.names, strict=True)
                ],
            )
            for name, texts in rows.items()
        ]
        # Many runs are wider than the page, which then scrolls here alone.
        return element(
            "div", element("table", head, lines, class_="stack"), class_="wide"
        )


def compare_runs(folders: Sequence[Path]) -> RunComparison:
    """Compare the receipts, configs and journals of finished runs.

    Args:
        folders: the runs' folders.

    Raises:
        ConfigError: a folder has no finished run, or fewer than two are given.
    """
    if len(folders) < 2:
        raise ConfigError("compare needs two or more runs: frugax compare runs/*.")
    found = [_read_receipt(RunFolder(Path(folder))) for folder in folders]
    rows: dict[str, list[str]] = {}
    configs: dict[str, list[str]] = {}
    for i, receipt in enumerate(found):
        try:
            described, config = _describe(receipt), flatten_keys(receipt["config"])
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise ConfigError(
                f"{folders[i]}: receipt.json is not the receipt of a run ({e!r:.80})."
            ) from e
        for name, text in described.items():
            rows.setdefault(name, ["-"] * len(found))[i] = text
        for name, text in config.items():
            configs.setdefault(name, ["-"] * len(found))[i] = text
    names = _short_names(folders)
    return RunComparison(
        names=names,
        rows={name: tuple(texts) for name, texts in rows.items()},
        differences={k: tuple(v) for k, v in configs.items() if len(set(v)) > 1},
        curves=_read_curves(names, folders),
    )


def _read_receipt(folder: RunFolder) -> dict[str, Any]:
    try:
        return json.loads(folder.receipt.read_text(encoding="utf-8"))
    except OSError:
        raise ConfigError(
            f"{folder.path}: this folder has no finished run (no "
            f"{folder.receipt.name})."
        ) from None
    except ValueError as e:
        raise ConfigError(f"{folder.receipt}: is not JSON: {e}.") from e


def _describe(receipt: dict[str, Any]) -> dict[str, str]:
    spends = Receipt.from_json(json.dumps(receipt)).spends
    model = receipt["model"]
    rows = {
        "verdict": str(receipt["verdict"]),
        "training steps": f"{receipt['steps']:,}",
    }
    for s in spends:
        limit = amount(s.limit, s.unit)
        rows[s.name] = f"{s.measured_text} of {limit}: {s.verdict}"
    rows |= {f"{k}, from the file": f"{v:.5g}" for k, v in model["after"].items()}
    rows["model file"] = format_bytes(model["file_bytes"])
    rows["memory of one step"] = format_bytes(receipt["memory"]["planned_bytes"])
    if seconds := receipt["step_time"]["measured"]:
        rows["time of one step"] = format_seconds(seconds)
    rows["wall time"] = format_seconds(receipt["seconds"]["total"])
    return rows


def _read_curves(
    names: Sequence[str], folders: Sequence[Path]
) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    curves: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for name, folder in zip(names, folders, strict=True):
        journal = RunFolder(Path(folder)).journal
        if not journal.exists():
            continue  # it costs its curves; the rest is worth comparing
        records = watch.read(journal)
        for metric in records.names:
            if metric == "seconds":
                continue
            steps = records.steps_with(metric).astype(np.float64)
            values = records[metric].astype(np.float64)
            curves.setdefault(metric, {})[name] = steps, values
    return curves


def _short_names(folders: Sequence[Path]) -> tuple[str, ...]:
    """Return the last parts of the paths, as many as tell them apart."""
    parts = [Path(folder).parts for folder in folders]
    for count in range(1, max(map(len, parts))):
        short = tuple("/".join(p[-count:]) for p in parts)
        if len(set(short)) == len(short):
            return short
    return tuple(map(str, folders))
