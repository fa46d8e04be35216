"""Run the `frugax` command by `python -m frugax.cli`."""

from . import main

main()
