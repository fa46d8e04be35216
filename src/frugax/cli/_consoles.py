"""Where commands write: results to the output, all else to the error stream."""

from rich.console import Console

console = Console()
errors = Console(stderr=True)
