"""`python -m frugax.cli` is the `frugax` command."""

from . import main

main()
