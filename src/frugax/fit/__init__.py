"""Plan a training step for devices that need not be here: does it fit, at what price.

Start at `plan` for one target, or `compare` for several; `find_largest_batch` and
`search` vary the batch and the layout. Guide: docs/targets.md.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
