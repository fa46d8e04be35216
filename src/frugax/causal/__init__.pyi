from .campaign import (
    Campaign as Campaign,
    CampaignConfig as CampaignConfig,
    CampaignPlan as CampaignPlan,
    Experiment as Experiment,
    Recommendation as Recommendation,
    StopAdvice as StopAdvice,
    apply as apply,
    plan as plan,
)
from .data import Samples as Samples
from .environments import (
    Environment as Environment,
    environment_from_scm as environment_from_scm,
    load_environment as load_environment,
)
from .scm import (
    SCM as SCM,
    GeneratedBatch as GeneratedBatch,
    Intervention as Intervention,
    Mechanisms as Mechanisms,
    VariableIntervention as VariableIntervention,
    collect_observational_data as collect_observational_data,
    generate_batch as generate_batch,
    generate_scm as generate_scm,
    generate_scm_for_difficulty as generate_scm_for_difficulty,
    intervene as intervene,
    intervene_imperfectly as intervene_imperfectly,
    interventional_mean as interventional_mean,
    sample as sample,
    scale as scale,
    shift as shift,
    standardize as standardize,
)
from .surrogate import (
    ParentSetPosterior as ParentSetPosterior,
    Surrogate as Surrogate,
    SurrogateTraining as SurrogateTraining,
    load_default_surrogate as load_default_surrogate,
    load_surrogate as load_surrogate,
    save_surrogate as save_surrogate,
    select_graph as select_graph,
    train_surrogate as train_surrogate,
)
