"""One compiled training step: loss, gradient and optimiser within a memory budget."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
