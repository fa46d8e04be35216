"""Say of each line which process printed it."""

import subprocess
import sys
import threading
from typing import IO


class Labels:
    """Copies what processes print, line by line, each with a label before it.

    A line is never cut in two by another process's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def follow(self, process: subprocess.Popen[bytes], label: str) -> None:
        """Copy from now on, until the process and all that it started have ended.

        Args:
            process: started with pipes for stdout and stderr.
            label: what is written before its lines, in brackets.
        """
        for source, target in (
            (process.stdout, sys.stdout),
            (process.stderr, sys.stderr),
        ):
            assert source is not None  # for the type checker: started with pipes
            thread = threading.Thread(
                target=self._copy, args=(source, target, f"[{label}] "), daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def __enter__(self) -> "Labels":
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(5.0)  # something that left its group may hold the pipe

    def _copy(self, source: IO[bytes], target: IO[str], label: str) -> None:
        with source:
            for line in source:
                text = line.decode(errors="replace").rstrip("\r\n")
                with self._lock:
                    print(f"{label}{text}", file=target, flush=True)
