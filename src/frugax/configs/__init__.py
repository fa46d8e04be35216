"""Read a YAML file into a config; every mistake is named with its file and line.

Start at `parse_config`; `read_text` reads the file for it.
"""

from ._parse_config import parse_config, read_text

__all__ = ["parse_config", "read_text"]
