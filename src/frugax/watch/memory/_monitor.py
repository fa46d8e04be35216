"""Memory over time: now, the most there ever was, and the mean of late."""

import threading
from collections import deque

_MOST_SAMPLES = 1000


class MemoryUsageMonitor:
    """Keeps the last 1000 samples and the highest ever. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: deque[float] = deque(maxlen=_MOST_SAMPLES)
        self._peak = 0.0

    def record_memory_usage(self, memory_mb: float) -> None:
        """Add a sample.

        Args:
            memory_mb: memory in use, in MB; >= 0.

        Raises:
            ValueError: it is negative or no number.
        """
        if not memory_mb >= 0:
            raise ValueError(f"memory_mb must be >= 0, got {memory_mb}.")
        with self._lock:
            self._samples.append(memory_mb)
            self._peak = max(self._peak, memory_mb)

    def get_memory_stats(self) -> dict[str, float]:
        """What was recorded.

        Returns:
            `current_mb`, `peak_mb` (of all samples ever), `avg_mb` (of those kept), all
            0 before the first sample, and from then on `samples_count`, those kept.
        """
        with self._lock:
            samples, peak = list(self._samples), self._peak
        if not samples:
            return {"current_mb": 0.0, "peak_mb": 0.0, "avg_mb": 0.0}
        return {
            "current_mb": samples[-1],
            "peak_mb": peak,
            "avg_mb": sum(samples) / len(samples),
            "samples_count": len(samples),
        }

    def should_trigger_cleanup(self, threshold_mb: float = 500.0) -> bool:
        """Whether the last sample is above a threshold.

        Args:
            threshold_mb: in MB.
        """
        with self._lock:
            return bool(self._samples) and self._samples[-1] > threshold_mb
