"""Who causes whom, answered in milliseconds by a network that saw many examples."""

from ._posterior import ParentSetPosterior

__all__ = ["ParentSetPosterior"]
