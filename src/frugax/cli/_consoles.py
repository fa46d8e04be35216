"""The consoles that commands print to: results to stdout, all else to stderr."""

from rich.console import Console

console = Console()
errors = Console(stderr=True)


def print_error(error: Exception) -> None:
    """Print an error on standard error, as one line."""
    from rich.markup import escape

    # Messages quote the paths and keys of users, and rich would read brackets as
    # markup.
    text = escape(" ".join(str(error).split()))
    errors.print(
        f"[bold red]frugax:[/bold red] {text}", soft_wrap=True, highlight=False
    )
