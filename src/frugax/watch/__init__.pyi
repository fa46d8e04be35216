from . import (
    delivery as delivery,
    drawing as drawing,
    journal as journal,
    probes as probes,
    sinks as sinks,
)
from ._alerts import (
    Alerts as Alerts,
)
from ._apply import (
    apply as apply,
)
from ._current import (
    current as current,
)
from ._flight_recorder import (
    FlightRecorder as FlightRecorder,
)
from ._jit import (
    jit as jit,
)
from ._plan import (
    plan as plan,
)
from ._prove import (
    prove as prove,
)
from ._rate import (
    Level as Level,
)
from ._reductions import (
    histogram as histogram,
    image as image,
    norms as norms,
)
from ._run import (
    run as run,
)
from ._text import (
    table as table,
    text as text,
)
from ._watch_plan import (
    PlannedRecords as PlannedRecords,
    WatchPlan as WatchPlan,
)
from ._watcher import (
    Watcher as Watcher,
)
from .journal import (
    Journal as Journal,
    Records as Records,
    export as export,
    read as read,
)
from .probes import (
    Probe as Probe,
    collect as collect,
    frame as frame,
    record as record,
    scan as scan,
    summarise as summarise,
)
from .sinks import (
    HtmlReport as HtmlReport,
    Sink as Sink,
    Terminal as Terminal,
)
