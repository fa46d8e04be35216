"""How often frames are worth their price."""

from ._account import FIRST_PRICE_S, Account

_MOST_STRIDE = 1024


class FramePace:
    """Says when a frame can be paid for, and learns what frames cost.

    Attributes:
        stride: of frames inside a loop every so manyth is worth its price now.
    """

    def __init__(self, account: Account, *, frames_per_s: float) -> None:
        """Begin with every frame.

        Args:
            account: what pays for them.
            frames_per_s: most frames a second; > 0.

        Raises:
            ValueError: that is not so.
        """
        if not frames_per_s > 0:
            raise ValueError(f"frames_per_s must be > 0, got {frames_per_s}.")
        self.stride = 1
        self._account = account
        self._frame_s = 1.0 / frames_per_s
        self._next = 0.0  # no frame before this
        self._last = 0.0  # when frames were last handed on
        self._price_s = FIRST_PRICE_S  # of those handed on last

    def wants(self, now: float) -> bool:
        """Whether a frame is due and can be paid for."""
        return now >= self._next and self._account.affords(self._price_s, now)

    def take(self, now: float) -> None:
        """A frame has come: the next one is not due at once."""
        self._next = now + self._frame_s

    def learn(self, frames: int, seconds: float, *, thin: bool) -> None:
        """Some frames were handed on.

        Args:
            frames: how many.
            seconds: what they have cost.
            thin: whether frames of a loop may be left out.
        """
        now = self._account.clock()
        earned = self._account.share * (now - self._last)
        self._last = now
        self._price_s = seconds
        if frames > 1 and thin:
            if seconds > earned:
                self.stride = min(2 * self.stride, _MOST_STRIDE)
            elif seconds < earned / 4:
                self.stride = max(self.stride // 2, 1)
