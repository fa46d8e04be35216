from . import (
    delivery as delivery,
    drawing as drawing,
    journal as journal,
    probes as probes,
    sinks as sinks,
)
from ._current import (
    current as current,
)
from ._flight import (
    FlightRecorder as FlightRecorder,
)
from ._jit import (
    jit as jit,
)
from ._levels import (
    Level as Level,
)
from ._plan import (
    WatchPlan as WatchPlan,
    plan as plan,
)
from ._price import (
    WatchPrices as WatchPrices,
    price as price,
)
from ._prove import (
    prove as prove,
)
from ._watcher import (
    Watcher as Watcher,
    default as default,
)
from .drawing import (
    episode_svg as episode_svg,
    grid_svg as grid_svg,
    sheet_svg as sheet_svg,
    step_svg as step_svg,
)
from .journal import (
    Follower as Follower,
    Journal as Journal,
    LostRange as LostRange,
    Records as Records,
    export as export,
    read as read,
)
from .probes import (
    Last as Last,
    Partly as Partly,
    Probe as Probe,
    collect as collect,
    frame as frame,
    record as record,
    scan as scan,
    summarise as summarise,
)
from .sinks import (
    Event as Event,
    HtmlReport as HtmlReport,
    JsonLines as JsonLines,
    MLflow as MLflow,
    Rerun as Rerun,
    Sink as Sink,
    SvgFiles as SvgFiles,
    TensorBoard as TensorBoard,
    Terminal as Terminal,
    WandB as WandB,
)
