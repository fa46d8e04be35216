"""What is called to tell how far long work is."""


def check_progress(progress: object) -> None:
    """Meet what cannot be called before the work, not in the middle of it.

    Raises:
        TypeError: it is neither a function nor None.
    """
    if progress is not None and not callable(progress):
        raise TypeError(
            "progress must be a function of (share, text), or None, got "
            f"{progress!r:.60}."
        )
