"""The benchmarks of `frugax.compress`, one after the other.

    python -m benchmarks.compress
    python -m benchmarks.compress lossless streaming

Each writes its own file of results; see the head of `benchmarks/compress_*.py`.
"""

from benchmarks.one_by_one import run

if __name__ == "__main__":
    run(
        "compress",
        ("lossless", "lossy", "streaming"),
        "The benchmarks of frugax.compress.",
    )
