"""Tables of what was observed and what was changed, from files, frames and models.

Start at `Samples`; `load_sachs` reads known data. Guide: docs/causal_scm.md.
"""

from ._package_file import package_file
from ._sachs import load_sachs
from ._samples import Samples

__all__ = ["Samples", "load_sachs", "package_file"]
