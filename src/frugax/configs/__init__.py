"""Read a YAML file into a config; every mistake is named with its file and line.

Start at `parse_config`; `read_text` reads the file for it, and `read_mapping` gives its
plain data. `user_code` does the same for mistakes in the functions that a config names.
"""

from ._parse_config import parse_config, read_text
from ._user_code import user_code
from ._yaml import read_mapping

__all__ = ["parse_config", "read_mapping", "read_text", "user_code"]
