"""The consoles that commands print to: results to stdout, all else to stderr."""

from rich.console import Console

console = Console()
errors = Console(stderr=True)
