"""Tables of what was observed and what was changed, from files, frames and models.

Start at `Samples`. Guide: docs/causal_scm.md.
"""

from ._samples import Samples

__all__ = ["Samples"]
