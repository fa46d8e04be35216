"""`error_text`: an error of a user's function or of a sink in one short line."""


def error_text(error: BaseException) -> str:
    """Return the type and message of an error in one short line."""
    try:
        text = f"{type(error).__name__}: {error}"
    # `__str__` is a user's function too, and may raise anything.
    except BaseException:
        text = type(error).__name__
    return " ".join(text.split())[:200]
