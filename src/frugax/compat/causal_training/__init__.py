"""Names of the older guide to causal training, kept working on top of the rooms.

Guide: docs/compat/causal_training.md.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
