"""Checkpoints of a training state: complete or ignored, and verified before loading."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
