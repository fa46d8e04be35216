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
    """A random problem: a model, with prices and sizes of experiments on it.

    Attributes:
        truth: the model.
        budget: of the campaign.
        observed: rows without an experiment.
        rows: rows of one experiment.
        seed: of all other random numbers.
    """

    truth: Environment
    budget: ExperimentBudget
    observed: int
    rows: int
    seed: int

    def campaign(self, policy: str | Policy) -> Campaign:
        """Start a campaign with the observed rows.

        Args:
            policy: chooses the experiments.
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
    """States of campaigns, with the truth and the expert's choices.

    Attributes:
        board: the boards of the campaigns, stacked.
        truth: the target's true mean at each place, where less is better.
        choice: the expert's, `set * places + place`.
    """

    board: Board
    truth: Float[np.ndarray, "n v k"]
    choice: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.choice)

    def take(self, which: np.ndarray | slice) -> "Demonstrations":
        """Select states by position.

        Args:
            which: the positions.
        """
        return Demonstrations(
            board=self.board.take(which),
            truth=self.truth[which],
            choice=self.choice[which],
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write them to a NumPy archive.

        Args:
            path: the file; its name should end with `.npz`. An existing file must
                hold demonstrations.

        Raises:
            OutputError: it cannot be written, or the file is of another kind.
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
        """Read a file that `save` wrote.

        Args:
            path: the file.

        Raises:
            CorruptFileError: it is damaged, or holds something else.
            FileNotFoundError: the file does not exist.
        """
        names = [f.name for f in dataclasses.fields(Board)]
        try:
            # First as an archive: NumPy reports any other file as a pickle.
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
    """Generate random problems without end, each with a target that can be improved.

    Two thirds of them have different prices, by a factor of up to four.

    Args:
        seed: of all problems.
        families: of the models.
        variables: smallest and largest number.
        experiments: number of experiments of the usual price that the budget allows.
    """
    number = 0
    while True:
        # A generator of its own for each problem: the n-th problem does not depend on
        # how many random numbers those before it took.
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
        # Nine values along each range, with both ends, where linear mechanisms are
        # best.
        ends = {n: np.linspace(*truth.ranges[n], 9) for n in truth.ranges}
        least = min(float(truth.mean({n: at}).min()) for n, at in ends.items())
        # A problem with little to gain teaches a policy nothing.
        if truth.expected() - least < 0.3:
            continue
        prices = dict.fromkeys(truth.ranges, 1.0)
        if rng.random() < 2 / 3:
            # Powers of 2 between a half and two, symmetric around the usual price.
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
        campaigns: their number.
        seed: of all campaigns.
        expert: one of the policies by name, or `"oracle"`, who knows the truth and
            takes the best that the budget pays for.
        stray: share of experiments chosen at random instead of by the expert, so that
            a policy also learns to continue after a mistake; in [0, 1].
        experiments: number of experiments of the usual price that a budget allows.

    Raises:
        ValueError: the expert is unknown, or a number is out of its range.
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

        # task=task binds this turn's task; a closure would look it up only when it is
        # called.
        def watched(outlook: Outlook, rng: np.random.Generator, task=task) -> int:
            board = board_of(outlook)
            truth = true_means(task.truth, outlook, board)
            if expert == "oracle":
                choice = int(np.where(board.there, truth, np.inf).argmin())
                point = int(board.point.reshape(-1)[choice])
            else:
                point = POLICIES[expert](outlook, rng)
                choice = _place_of(outlook, board, point)
            # A choice whose set is not on the board cannot be imitated.
            if choice >= 0:
                boards.append(board)
                truths.append(truth)
                choices.append(choice)
            # The expert's choice is recorded either way. With its own actions alone the
            # policy would never see a state that follows a mistake.
            return POLICIES["random"](outlook, rng) if rng.random() < stray else point

        campaign = task.campaign(watched)
        while (ask := campaign.ask()) is not None:
            # Noise that depends on the number of the question alone: campaigns of two
            # policies on one task differ by their choices and not by luck.
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
    """Compute the target's true mean at each place; less is better.

    Args:
        truth: the model, to minimise or maximise.
        outlook: its columns are the model's variables.
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
    """Find the place that a point belongs to; -1 if its set is not on the board."""
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
    """Make an expert's choices likely; one program is compiled.

    Args:
        policy: the policy to start from.
        shown: the states and choices of the expert.
        steps: number of training steps.
        batch_size: states in a step; at most 65,536.
        learning_rate: at the start; it decays to 0.
        seed: of the order.

    Returns:
        The policy, and the result of `frugax.train.fit`.

    Raises:
        TypeError: `policy` is not an `AcquisitionPolicy`, or `shown` are not
            `Demonstrations`.
        ValueError: a number is out of its range, or training led to weights that are
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
    # Features once for all states; they do not depend on weights.
    told, playable = board_features(shown.board), shown.board.playable
    rate = optax.cosine_decay_schedule(learning_rate, steps)
    # compile_budget=1: all batches have one size, and a second program would be a
    # mistake.
    step = train.make_train_step(
        _surprise, optax.adamw(rate, weight_decay=1e-3), clip=1.0, compile_budget=1
    )

    def batch_of(index: int) -> dict[str, Any]:
        # By the number of the batch, so that a run that was interrupted goes on with
        # the same batches.
        rng = np.random.default_rng([seed, index])
        some = rng.integers(0, len(shown), batch_size)
        return {
            "told": told[some],
            "playable": playable[some],
            "choice": shown.choice[some],
        }

    result = train.fit(step, step.init(policy.weights), batch_of, steps=steps)
    # NumPy again: campaigns ask a policy without JAX.
    weights = {name: np.asarray(w) for name, w in result.state.params.items()}
    return AcquisitionPolicy(weights, greedy=policy.greedy), result


def _surprise(weights: PolicyWeights, batch: dict[str, Any]) -> Any:
    log_p = log_policy(weights, batch["told"], batch["playable"], xp=jnp)
    log_p = log_p.reshape(len(log_p), -1)
    return -jnp.take_along_axis(log_p, batch["choice"][:, None], axis=1).mean()
