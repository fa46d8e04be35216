"""Faults that a seed injects into callbacks and sinks, full disks, and threads."""

import contextlib
import resource
import signal
import sys
import threading
import time

import numpy as np

FAULTS = ("error", "exit", "interrupt", "disk", "memory", "slow", "hang", "none")


class Faults:
    """Does something else wrong at each call, as a seed says, and counts it."""

    def __init__(self, seed=0, *, hang_s):
        self.rng = np.random.default_rng(seed)
        self.done: dict[str, int] = dict.fromkeys(FAULTS, 0)
        self.hang_s = hang_s

    def __call__(self, *_):
        # Hanging takes time: one in forty.
        odds = np.array([6, 6, 6, 6, 6, 3, 1, 6])
        fault = str(self.rng.choice(FAULTS, p=odds / odds.sum()))
        self.done[fault] += 1
        match fault:
            case "error":
                raise ValueError("injected")
            case "exit":
                raise SystemExit(1)
            case "interrupt":
                raise KeyboardInterrupt
            case "disk":
                raise OSError(28, "No space left on device")
            case "memory":
                raise MemoryError
            case "slow":
                time.sleep(0.001)
            case "hang":
                time.sleep(3 * self.hang_s)

    @property
    def count(self):
        return sum(self.done.values()) - self.done["none"]


@contextlib.contextmanager
def full_disk(size):
    """No file grows beyond this size, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def at_once(call, *, threads=4):
    """Call a function in threads that change as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        workers = [threading.Thread(target=call) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
