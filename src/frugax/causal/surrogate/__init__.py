"""Amortized causal discovery: a trained network estimates edges in milliseconds.

Start at `load_default_surrogate`; `train_surrogate` trains another one. Guide:
docs/causal_surrogate.md.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
