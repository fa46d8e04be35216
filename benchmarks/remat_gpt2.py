"""A GPT-2 of real size within shares of its memory: its whole step with AdamW.

    python -m benchmarks.remat_gpt2 [--targets cpu,h100] [--shares 0.5,0.35,0.25]

Twelve layers of 768, a vocabulary of 50,257, flax nnx, weights and optimiser state
donated. Nothing is run: the bytes are the temporaries that each compiler reports.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from frugax import InfeasibleBudgetError, MemoryBudget, remat
from frugax.targets import Target

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH, ROWS = 12, 768, 12, 50_257, 512, 4


class Block(nnx.Module):
    """Attention and a feed-forward net, each on normalised inputs."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first, self.second = (nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        mask = nnx.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + self.attention(self.first(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.second(x))))


class Gpt2(nnx.Module):
    """GPT-2 (Radford et al. 2019) with embeddings that are tied to the logits."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.words = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.places = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.words(tokens) + self.places(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.words.attend(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", default="cpu,h100")
    parser.add_argument("--shares", default="0.5,0.35,0.25")
    asked = parser.parse_args()
    model = nnx.eval_shape(lambda: Gpt2(nnx.Rngs(0)))
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    optimizer = optax.adamw(1e-3)
    state = jax.eval_shape(optimizer.init, params)

    def loss(params: Any, rest: Any, tokens: Any) -> Any:
        logits = nnx.merge(graph, params, rest)(tokens[:, :-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean()

    def build(value_and_grad: Any) -> Any:
        def step(params: Any, state: Any, rest: Any, tokens: Any) -> Any:
            value, grads = value_and_grad(params, rest, tokens)
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state, value

        return step

    tokens = jax.ShapeDtypeStruct((ROWS, LENGTH + 1), jnp.int32)
    print("| target | share | kept | more flops | plain | processor time |")
    print("| --- | --: | --: | --: | --: | --: |")
    for name in asked.targets.split(","):
        place = Target(name).place
        args = place((params, rest, tokens))
        within = remat.EnclosingProgram(
            build=build,
            args=place((params, state, rest, tokens)),
            donate_argnums=(0, 1),
        )
        for share in map(float, asked.shares.split(",")):
            begun = time.process_time()
            try:
                budget = MemoryBudget.share(share)
                plan = remat.plan(loss, budget, args, within=within)
                kept, flops = plan.predicted, f"{plan.extra_share:+.1%}"
                if plan.batch is not None:
                    flops += f", {plan.batch.count} chunks"
            except InfeasibleBudgetError as e:
                plan, kept, flops = e.best, e.needed, "not met: the least"
            row = [name, f"{share:g}", f"{kept / plan.unplanned_bytes:.3f}", flops]
            row += [f"{plan.unplanned_bytes / 2**20:,.0f} MiB"]
            row += [f"{time.process_time() - begun:.0f} s"]
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
