"""A YAML file as a config, in which every mistake is named with its place.

Start at `config_of`; `read_text` reads the file for it.
"""

from ._config_of import config_of, read_text

__all__ = ["config_of", "read_text"]
