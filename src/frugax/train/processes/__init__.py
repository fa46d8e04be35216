"""Run as one of several processes: layouts, agreement, the watchdog and the exit."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
