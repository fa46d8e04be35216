"""Read the docstring of a command: its text, its examples, and what arguments mean.

Imports the standard library alone: the site reads the same docstrings without frugax.
"""

import dataclasses
import inspect
import re
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class CommandDocstring:
    """The parts of a docstring.

    Attributes:
        summary: its first sentence.
        examples: the command lines that it shows.
        paragraphs: everything else before the arguments.
        meanings: the text of each argument or attribute by its name.
    """

    summary: str
    examples: tuple[str, ...]
    paragraphs: tuple[str, ...]
    meanings: Mapping[str, str]


def read_docstring(docstring: str) -> CommandDocstring:
    """Take a docstring in Google's style apart."""
    text, *rest = re.split(
        r"^(Args|Attributes|Raises|Returns|Example):$",
        inspect.cleandoc(docstring),
        flags=re.MULTILINE,
    )
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    listed = sections.get("Args", "") + sections.get("Attributes", "")
    meanings: dict[str, str] = {}
    for entry in re.split(r"\n(?= {4}\w)", listed):
        name, _, meaning = " ".join(entry.split()).partition(": ")
        if meaning:
            meanings[name] = meaning
    summary, *others = (" ".join(part.split()) for part in text.strip().split("\n\n"))
    return CommandDocstring(
        summary=summary,
        examples=tuple(part for part in others if part.startswith("frugax ")),
        paragraphs=tuple(
            part
            for part in others
            if part != "For example:" and not part.startswith("frugax ")
        ),
        meanings=meanings,
    )
