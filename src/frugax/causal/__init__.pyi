from ._gain_per_cost import (
    gain_per_cost as gain_per_cost,
)
from ._plan import (
    CausalPlan as CausalPlan,
    plan as plan,
)
from .campaign import (
    Advice as Advice,
    Ask as Ask,
    Campaign as Campaign,
    Recommendation as Recommendation,
)
from .data import (
    Samples as Samples,
    load_sachs as load_sachs,
)
from .environments import (
    Environment as Environment,
    environment as environment,
    environment_of as environment_of,
    load_network as load_network,
)
from .scm import (
    SCM as SCM,
    Change as Change,
    GeneratedBatch as GeneratedBatch,
    Intervention as Intervention,
    Mechanisms as Mechanisms,
    collect_observational_data as collect_observational_data,
    expectation as expectation,
    generate as generate,
    generate_batch as generate_batch,
    generate_scm_for_difficulty as generate_scm_for_difficulty,
    imperfect as imperfect,
    intervene as intervene,
    sample as sample,
    scale as scale,
    shift as shift,
    simulate as simulate,
    stack as stack,
    standardised as standardised,
)
from .surrogate import (
    ParentSetPosterior as ParentSetPosterior,
    Surrogate as Surrogate,
    SurrogateTraining as SurrogateTraining,
    default_surrogate as default_surrogate,
    likely_graph as likely_graph,
    load_surrogate as load_surrogate,
    save_surrogate as save_surrogate,
    train_surrogate as train_surrogate,
)
