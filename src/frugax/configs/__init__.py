"""Read a YAML file into a config; every mistake is named with its file and line.

Start at `parse_config`; `read_text` reads the file for it, and `read_mapping` gives its
plain data.
"""

from ._parse_config import parse_config, read_text
from ._yaml import read_mapping

__all__ = ["parse_config", "read_mapping", "read_text"]
