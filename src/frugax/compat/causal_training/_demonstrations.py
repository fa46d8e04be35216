"""Behaviour cloning: teach a policy to choose as an expert did."""

import dataclasses
import os
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int

from frugax import train
from frugax.budget import ExperimentBudget
from frugax.causal.campaign import Campaign
from frugax.causal.checks import check_kind, check_real, check_whole
from frugax.causal.environments import Environment, environment_from_scm
from frugax.causal.policy import POLICIES, Outlook, Policy
from frugax.causal.scm import generate_scm
from frugax.errors import CorruptFileError
from frugax.fileio import atomic_write, check_ownership

from ._board import PLACES, Board, board_features, board_of, stacked
from ._policy import AcquisitionPolicy, PolicyWeights, log_policy

_GRAPHS = ("erdos_renyi", "scale_free")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A random problem: a model, and what experiments on it cost and give.

    Attributes:
        truth: the model.
        budget: of the campaign.
        observed: rows without an experiment.
        rows: rows that one experiment gives.
        seed: of everything else.
    """

    truth: Environment
    budget: ExperimentBudget
    observed: int
    rows: int
    seed: int

    def campaign(self, policy: str | Policy) -> Campaign:
        """A campaign that has been told the observed rows.

        Args:
            policy: how it chooses.
        """
        made = Campaign(
            variables=self.truth.ranges,
            target=self.truth.target,
            budget=self.budget,
            rows_per_experiment=self.rows,
            policy=policy,
            seed=self.seed,
        )
        made.tell_observations(self.truth.sample(self.observed, seed=self.seed))
        return made


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """Moments of campaigns: what was known, what is true, what the expert chose.

    Attributes:
        board: what was known, stacked.
        truth: the target's true mean at each place, where less is better.
        choice: the expert's, `set * places + place`.
    """

    board: Board
    truth: Float[np.ndarray, "n v k"]
    choice: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.choice)

    def take(self, which: np.ndarray | slice) -> "Demonstrations":
        """Some of them.

        Args:
            which: their positions.
        """
        return Demonstrations(
            board=self.board.take(which),
            truth=self.truth[which],
            choice=self.choice[which],
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write them to a NumPy archive.

        Args:
            path: the file; its name should end with `.npz`. One that is there must
                hold demonstrations.

        Raises:
            OutputError: it cannot be written, or something else is there.
        """
        check_ownership(path, Demonstrations.load, "file of demonstrations")
        arrays = {
            f.name: getattr(self.board, f.name) for f in dataclasses.fields(Board)
        }
        with atomic_write(path) as file:
            np.savez_compressed(
                file,
                allow_pickle=False,
                truth=self.truth,
                choice=self.choice,
                **arrays,
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Demonstrations":
        """Read what was saved.

        Args:
            path: the file.

        Raises:
            CorruptFileError: it is damaged, or holds something else.
            FileNotFoundError: there is none.
        """
        names = [f.name for f in dataclasses.fields(Board)]
        try:
            # First as an archive: of what is none NumPy says that it is a pickle.
            with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as file:
                return cls(
                    board=Board(**{name: file[name] for name in names}),
                    truth=file["truth"],
                    choice=file["choice"],
                )
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as e:
            raise CorruptFileError(
                f"{os.fspath(path)} holds no demonstrations, or is damaged: {e}."
            ) from e


def random_tasks(
    seed: int,
    *,
    families: tuple[str, ...] = ("linear", "mlp"),
    variables: tuple[int, int] = (3, 7),
    experiments: float = 5.0,
) -> Iterator[Task]:
    """Random problems without end; those that no experiment could change are left out.

    Two thirds of them have prices that differ, by up to four times.

    Args:
        seed: of all of them.
        families: of the models.
        variables: fewest and most.
        experiments: of the usual price that the budget pays for.
    """
    number = 0
    while True:
        rng = np.random.default_rng([seed, number])
        number += 1
        scm = generate_scm(
            str(rng.choice(_GRAPHS)),
            int(rng.integers(variables[0], variables[1] + 1)),
            family=str(rng.choice(families)),
            seed=rng,
        )
        observed, rows = int(rng.integers(20, 101)), int(rng.integers(1, 11))
        if scm.target is None:
            continue
        truth = environment_from_scm(scm, nodes=512)
        ends = {n: np.linspace(*truth.ranges[n], 9) for n in truth.ranges}
        least = min(float(truth.mean({n: at}).min()) for n, at in ends.items())
        if truth.expected() - least < 0.3:
            continue
        prices = dict.fromkeys(truth.ranges, 1.0)
        if rng.random() < 2 / 3:
            prices = {n: round(float(2 ** rng.uniform(-1, 1)), 2) for n in prices}
        usual = float(np.mean(list(prices.values())))
        yield Task(
            truth=truth,
            budget=ExperimentBudget(cost=experiments * usual, costs=prices),
            observed=observed,
            rows=rows,
            seed=int(rng.integers(1 << 30)),
        )


def expert_demonstrations(
    campaigns: int,
    *,
    seed: int,
    expert: str = "improvement",
    stray: float = 0.3,
    experiments: float = 5.0,
) -> Demonstrations:
    """Let an expert choose in real campaigns on random models.

    Args:
        campaigns: how many.
        seed: of all of them.
        expert: one of the policies by name, or `"oracle"`, who knows the truth and
            takes the best that the budget pays for.
        stray: how often another experiment is done than the expert chose, so that a
            policy also learns to go on after a mistake; in [0, 1].
        experiments: of the usual price that a campaign's budget pays for.

    Raises:
        ValueError: there is no such expert, or a number is out of its range.
    """
    if expert != "oracle" and expert not in POLICIES:
        raise ValueError(
            f"expert must be one of {', '.join(POLICIES)} and oracle, got {expert!r}."
        )
    if campaigns < 1 or not 0 <= stray <= 1:
        raise ValueError(
            f"campaigns must be >= 1 and stray in [0, 1], got {campaigns} and {stray}."
        )
    boards: list[Board] = []
    truths: list[np.ndarray] = []
    choices: list[int] = []
    tasks = random_tasks(seed, experiments=experiments)
    for _ in range(campaigns):
        task = next(tasks)

        def watched(outlook: Outlook, rng: np.random.Generator, task=task) -> int:
            board = board_of(outlook)
            truth = true_means(task.truth, outlook, board)
            if expert == "oracle":
                choice = int(np.where(board.there, truth, np.inf).argmin())
                point = int(board.point.reshape(-1)[choice])
            else:
                point = POLICIES[expert](outlook, rng)
                choice = _place_of(outlook, board, point)
            if choice >= 0:
                boards.append(board)
                truths.append(truth)
                choices.append(choice)
            return POLICIES["random"](outlook, rng) if rng.random() < stray else point

        campaign = task.campaign(watched)
        while (ask := campaign.ask()) is not None:
            seed_of = task.seed + 1 + ask.id
            campaign.tell(
                ask,
                task.truth.sample(
                    task.rows, seed=seed_of, intervention=ask.intervention
                ),
            )
    return Demonstrations(
        board=stacked(boards), truth=np.stack(truths), choice=np.array(choices)
    )


def true_means(
    truth: Environment, outlook: Outlook, board: Board
) -> Float[np.ndarray, "v k"]:
    """The target's true mean at each place, where less is better.

    Args:
        truth: the model, to minimise or maximise.
        outlook: whose columns are the model's variables.
        board: of that outlook.
    """
    found = np.zeros(board.there.shape, np.float32)
    for row, there in enumerate(board.there):
        if there.any():
            at = [outlook.points.at(int(i)) for i in board.point[row, there]]
            values = np.stack([value for _, value in at], 1)
            names = [truth.variables[v] for v in at[0][0]]
            found[row, there] = truth.mean(dict(zip(names, values, strict=True)))
    return found if truth.minimize else -found


def _place_of(outlook: Outlook, board: Board, point: int) -> int:
    """The place that a point belongs to; -1 if its set is not on the board."""
    where, value = outlook.points.at(point)
    best, found = np.inf, -1
    for row, k in np.argwhere(board.there):
        there, stands = outlook.points.at(int(board.point[row, k]))
        if there == where and np.abs(stands - value).sum() < best:
            best, found = float(np.abs(stands - value).sum()), row * PLACES + k
    return int(found)


_MOST_MOMENTS = 1 << 16


def clone_expert(
    policy: AcquisitionPolicy,
    shown: Demonstrations,
    *,
    steps: int = 400,
    batch_size: int = 64,
    learning_rate: float = 3e-3,
    seed: int = 0,
) -> tuple[AcquisitionPolicy, train.FitResult]:
    """Make what an expert chose likely; one program is compiled.

    Args:
        policy: to begin with.
        shown: what the expert knew and chose.
        steps: to take.
        batch_size: moments a step; at most 65,536.
        learning_rate: the largest; it falls to nothing.
        seed: of the order.

    Returns:
        The policy, and what `frugax.train.fit` says of the training.

    Raises:
        TypeError: it is no policy with weights, or what was shown is no
            `Demonstrations`.
        ValueError: a number is out of its range, or training gave weights that are
            not finite.
    """
    check_kind("policy", policy, AcquisitionPolicy)
    check_kind("shown", shown, Demonstrations)
    check_whole("steps", steps, 1)
    check_whole("batch_size", batch_size, 1)
    check_whole("seed", seed, 0)
    check_real("learning_rate", learning_rate)
    if batch_size > _MOST_MOMENTS:
        raise ValueError(
            f"batch_size must be <= {_MOST_MOMENTS}, got {batch_size}: each moment "
            "takes 8 KB, several times over."
        )
    told, playable = board_features(shown.board), shown.board.playable
    rate = optax.cosine_decay_schedule(learning_rate, steps)
    step = train.make_train_step(
        _surprise, optax.adamw(rate, weight_decay=1e-3), clip=1.0, compile_budget=1
    )

    def batch_of(index: int) -> dict[str, Any]:
        rng = np.random.default_rng([seed, index])
        some = rng.integers(0, len(shown), batch_size)
        return {
            "told": told[some],
            "playable": playable[some],
            "choice": shown.choice[some],
        }

    result = train.fit(step, step.init(policy.weights), batch_of, steps=steps)
    weights = {name: np.asarray(w) for name, w in result.state.params.items()}
    return AcquisitionPolicy(weights, greedy=policy.greedy), result


def _surprise(weights: PolicyWeights, batch: dict[str, Any]) -> Any:
    log_p = log_policy(weights, batch["told"], batch["playable"], xp=jnp)
    log_p = log_p.reshape(len(log_p), -1)
    return -jnp.take_along_axis(log_p, batch["choice"][:, None], axis=1).mean()
