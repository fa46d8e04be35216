from ._static_args import (
    prepare_static_args as prepare_static_args,
    restore_static_args as restore_static_args,
)
from ._training_benchmarks import (
    CompilationCost as CompilationCost,
    MemoryUse as MemoryUse,
    SustainedThroughput as SustainedThroughput,
    benchmark_sustained_performance as benchmark_sustained_performance,
    measure_compilation_speedup as measure_compilation_speedup,
    monitor_memory_usage as monitor_memory_usage,
)
