"""Compare the figures of the README with the kept results of their commands.

    python scripts/check_readme.py

Prints the figures that differ, and exits with 1 if there are any.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent
_README = (_ROOT / "README.md").read_text()
_PROSE = re.sub(r"\s+", " ", _README)


def read_results(name: str) -> Any:
    """The kept results of a benchmark."""
    return json.loads((_ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def expected_outputs() -> Iterator[str]:
    """Commands and tables that the README shows, as they were run."""
    found = read_results("first_page")
    for part in ("plan", "run"):
        yield found[part]["command"].removeprefix("frugax ")
        yield f"\n{found[part]['table']}\n```"


def expected_phrases() -> Iterator[str]:
    """Pieces of sentences that hold a figure."""
    found = read_results("first_page")
    jax, day = found["made_with"]["jax"], found["made_with"]["date"].split()[0]
    seconds = found["plan"]["cpu_seconds"]
    yield f"{seconds:.0f} s of processor time for the two devices above"
    python = found["made_with"]["python"]
    yield f"JAX {jax}, Python {python}, two shared CPU cores, {day}"

    decoders = read_results("targets")["decoders"]["found"]
    row = decoders["decoder70b, h100x256, 40GiB"]
    yield f"{row['plain_gib']:.0f} GiB of temporaries on each of 256 H100s"
    yield "within 40 GiB"
    yield f"for {row['extra_flops']:.0%} more flops"
    yield f"in {row['seconds']:.0f} seconds"

    picture = (_ROOT / "docs" / "pictures" / "memory.svg").read_text()
    peaks = re.search(r"<desc>(\d+ MiB) with the plan, (\d+ MiB) without", picture)
    more = re.search(r"limit (\d+ MiB); ([\d.]+)% more flops", picture)
    if not peaks or not more:
        raise SystemExit("docs/pictures/memory.svg: the figures of its caption changed")
    yield f"{peaks[2]} without a plan, {peaks[1]} within a limit of {more[1]}"
    yield f"half of the memory: {float(more[2]):.0f}% more flops"

    times = [
        row["time"][1]
        for name, net in read_results("gpu_check").items()
        if re.fullmatch(r"net:\w+", name)
        for program, row in net["rows"].items()
        if program.startswith("planned")
    ]
    yield f"planned steps took {min(times):.2f} to {max(times):.2f} of the plain time"


def expected_patterns() -> Iterator[str]:
    """The time that each tutorial takes, next to its link."""
    for name, seconds in read_results("first_page")["clock"].items():
        yield rf"\(docs/tutorials/{name}\.md\)[\w ]* in {seconds:.1f} s"


def main() -> None:
    """Print what is missing."""
    missing = [
        *(text for text in expected_outputs() if text not in _README),
        *(text for text in expected_phrases() if text not in _PROSE),
        *(text for text in expected_patterns() if not re.search(text, _PROSE)),
    ]
    for text in missing:
        print(f"not in the README: {text}")
    raise SystemExit(bool(missing))


if __name__ == "__main__":
    main()
