"""Training steps whose times are predicted: ten to choose on, and twenty others.

Each is a function that returns a step and its arguments; the step's first result
replaces its first argument. Sizes are such that a step takes milliseconds on two cores.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from benchmarks import nets, remat_nets
from jax import lax

Program = tuple[Callable[..., Any], tuple[Any, ...]]
Loss = Callable[..., Any]


def _normal(seed: int, *shape: int, scale: float = 0.0) -> jax.Array:
    scale = scale or (shape[-2] ** -0.5 if len(shape) > 1 else 1.0)
    return scale * jax.random.normal(jax.random.key(seed), shape)


def _sgd(loss: Loss, weights: Any, *data: Any, rate: float = 1e-3) -> Program:
    def step(weights: Any, *data: Any) -> Any:
        value, grad = jax.value_and_grad(loss)(weights, *data)
        return jax.tree.map(lambda w, g: w - rate * g, weights, grad), value

    return step, (weights, *data)


def _adam(loss: Loss, weights: Any, *data: Any) -> Program:
    optimizer = optax.adam(1e-3)

    def step(state: Any, *data: Any) -> Any:
        weights, moments = state
        value, grad = jax.value_and_grad(loss)(weights, *data)
        updates, moments = optimizer.update(grad, moments)
        return (optax.apply_updates(weights, updates), moments), value

    return step, ((weights, optimizer.init(weights)), *data)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _labels(seed: int, count: int, *shape: int) -> jax.Array:
    return jax.random.randint(jax.random.key(seed), shape, 0, count)


def _layers(*sides: int, seed: int = 0) -> list[Any]:
    return [
        {"w": _normal(seed + i, a, b), "b": jnp.zeros(b)}
        for i, (a, b) in enumerate(itertools.pairwise(sides))
    ]


def _mlp(layers: list[Any], x: jax.Array, activation: Any = jax.nn.relu) -> jax.Array:
    for layer in layers[:-1]:
        x = activation(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def _conv(x: jax.Array, w: jax.Array, stride: int = 1) -> jax.Array:
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _kernel(seed: int, side: int, before: int, after: int) -> jax.Array:
    scale = (side * side * before) ** -0.5
    return _normal(seed, side, side, before, after, scale=scale)


def _pool(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


# --- to choose on -------------------------------------------------------------------


def mlp_classifier() -> Program:
    def loss(layers: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return _cross_entropy(_mlp(layers, x), y)

    layers = _layers(784, 512, 512, 256, 10)
    return _adam(loss, layers, _normal(9, 256, 784), _labels(8, 10, 256))


def convolutions() -> Program:
    def loss(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        x = _pool(jax.nn.relu(_conv(x, p["a"])))
        x = _pool(jax.nn.relu(_conv(x, p["b"])))
        return _cross_entropy(x.reshape(x.shape[0], -1) @ p["head"], y)

    p = {
        "a": _kernel(0, 3, 3, 32),
        "b": _kernel(1, 3, 32, 64),
        "head": _normal(2, 64 * 64, 10),
    }
    return _adam(loss, p, _normal(9, 32, 32, 32, 3), _labels(8, 10, 32))


def decoder_language_model() -> Program:
    width, heads, vocabulary = 192, 6, 512

    def attend(p: Any, x: jax.Array) -> jax.Array:
        b, t, d = x.shape
        q, k, v = jnp.split(x @ p["qkv"], 3, -1)
        split = lambda y: y.reshape(b, t, heads, d // heads).transpose(0, 2, 1, 3)
        scores = split(q) @ split(k).transpose(0, 1, 3, 2) / (d / heads) ** 0.5
        scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9)
        mixed = jax.nn.softmax(scores) @ split(v)
        return mixed.transpose(0, 2, 1, 3).reshape(b, t, d) @ p["out"]

    def loss(p: Any, tokens: jax.Array) -> jax.Array:
        x = p["embed"][tokens[:, :-1]]
        for layer in p["layers"]:
            x = x + attend(layer, jax.nn.standardize(x))
            h = jax.nn.gelu(jax.nn.standardize(x) @ layer["up"])
            x = x + h @ layer["down"]
        return _cross_entropy(x @ p["embed"].T, tokens[:, 1:])

    p = {
        "embed": _normal(0, vocabulary, width, scale=0.05),
        "layers": [
            {
                "qkv": _normal(i, width, 3 * width),
                "out": _normal(i + 10, width, width),
                "up": _normal(i + 20, width, 4 * width),
                "down": _normal(i + 30, 4 * width, width),
            }
            for i in range(3)
        ],
    }
    return _adam(loss, p, _labels(9, vocabulary, 8, 97))


def lstm() -> Program:
    def loss(p: Any, xs: jax.Array) -> jax.Array:
        def cell(carry: Any, x: jax.Array) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(x @ p["x"] + h @ p["h"] + p["b"], 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((xs.shape[1], 96))
        _, hs = lax.scan(cell, (zeros, zeros), xs)
        return jnp.mean((hs @ p["out"] - xs) ** 2)

    p = {
        "x": _normal(0, 24, 4 * 96),
        "h": _normal(1, 96, 4 * 96),
        "b": jnp.zeros(4 * 96),
        "out": _normal(2, 96, 24),
    }
    return _adam(loss, p, _normal(9, 120, 32, 24))


def message_passing() -> Program:
    nodes, edges = 2000, 12_000

    def loss(p: Any, x: jax.Array, send: Any, receive: Any, y: jax.Array) -> jax.Array:
        for layer in p["layers"]:
            message = jax.nn.relu(jnp.concatenate([x[send], x[receive]], -1) @ layer[0])
            gathered = jax.ops.segment_sum(message, receive, nodes)
            x = x + jax.nn.relu(gathered @ layer[1])
        return jnp.mean((x @ p["out"] - y) ** 2)

    p = {
        "layers": [(_normal(i, 96, 48), _normal(i + 5, 48, 48)) for i in range(3)],
        "out": _normal(8, 48, 1),
    }
    data = _normal(9, nodes, 48), _labels(1, nodes, edges), _labels(2, nodes, edges)
    return _adam(loss, p, *data, _normal(7, nodes, 1))


def poisson_residual() -> Program:
    def loss(layers: Any, xs: jax.Array) -> jax.Array:
        net = lambda x: _mlp(layers, x, jnp.tanh)[0]

        def residual(x: jax.Array) -> jax.Array:
            return jnp.trace(jax.hessian(net)(x)) + jnp.sin(jnp.pi * x).prod()

        return jnp.mean(jax.vmap(residual)(xs) ** 2)

    return _adam(loss, _layers(2, 48, 48, 48, 1), _normal(9, 1000, 2))


def diffusion_unet() -> Program:
    def norm(x: jax.Array) -> jax.Array:
        n, h, w, c = x.shape
        x = x.reshape(n, h, w, 4, c // 4)
        mean, var = x.mean((1, 2, 4), keepdims=True), x.var((1, 2, 4), keepdims=True)
        return ((x - mean) * lax.rsqrt(var + 1e-5)).reshape(n, h, w, c)

    def block(p: Any, x: jax.Array, t: jax.Array) -> jax.Array:
        y = _conv(jax.nn.silu(norm(x)), p["a"]) + (t @ p["t"])[:, None, None]
        y = _conv(jax.nn.silu(norm(y)), p["b"])
        return y + _conv(x, p["skip"])

    def loss(p: Any, x: jax.Array, key: Any) -> jax.Array:
        at, of_noise = jax.random.split(key)
        level = jax.random.uniform(at, (x.shape[0], 1))
        noise = jax.random.normal(of_noise, x.shape)
        mixed = jnp.sqrt(1 - level)[..., None, None] * x
        mixed += jnp.sqrt(level)[..., None, None] * noise
        waves = level * jnp.exp(jnp.linspace(0, 6, 16))
        t = jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], -1)
        first = block(p["first"], _conv(mixed, p["stem"]), t)
        down = block(p["down"], _conv(first, p["shrink"], 2), t)
        up = jax.image.resize(down, (*first.shape[:3], down.shape[-1]), "nearest")
        last = block(p["last"], jnp.concatenate([up, first], -1), t)
        return jnp.mean((_conv(last, p["head"]) - noise) ** 2)

    def weights(seed: int, before: int, after: int) -> dict[str, jax.Array]:
        return {
            "a": _kernel(seed, 3, before, after),
            "b": _kernel(seed + 1, 3, after, after),
            "skip": _kernel(seed + 2, 1, before, after),
            "t": _normal(seed + 3, 32, after),
        }

    p = {
        "stem": _kernel(0, 3, 3, 32),
        "first": weights(1, 32, 32),
        "shrink": _kernel(5, 3, 32, 64),
        "down": weights(6, 64, 64),
        "last": weights(12, 96, 32),
        "head": _kernel(20, 3, 32, 3),
    }
    return _adam(loss, p, _normal(9, 8, 32, 32, 3), jax.random.key(0))


def planar_flow() -> Program:
    """Elementwise operations for the most part."""

    def loss(p: Any, z: jax.Array) -> jax.Array:
        density = -0.5 * jnp.sum(z**2, -1)
        for w in p:
            inner = jnp.tanh(z @ w["w"] + w["b"])
            slope = jax.nn.softplus(w["s"]) * (1 - inner**2)
            z = z + w["u"] * inner[:, None] + 0.1 * jnp.sin(z)
            density -= jnp.log1p(jnp.abs(slope))
        return -jnp.mean(density - 0.25 * jnp.sum(jnp.log1p(z**2), -1))

    p = [
        {"w": _normal(i, 32, scale=0.2), "u": _normal(i + 20, 32, scale=0.2),
         "b": jnp.zeros(()), "s": jnp.zeros(())}
        for i in range(8)
    ]  # fmt: skip
    return _adam(loss, p, _normal(9, 4096, 32))


def ppo_cart_pole() -> Program:
    """A rollout of many carts in a scan, and an update on what they did."""

    def move(state: jax.Array, force: jax.Array) -> jax.Array:
        x, v, angle, w = jnp.moveaxis(state, -1, 0)
        push = (force + 0.05 * w**2 * jnp.sin(angle)) / 1.1
        turn = (9.8 * jnp.sin(angle) - jnp.cos(angle) * push) / (
            0.5 * (4 / 3 - 0.1 * jnp.cos(angle) ** 2 / 1.1)
        )
        slide = push - 0.05 * turn * jnp.cos(angle) / 1.1
        new = [x + 0.02 * v, v + 0.02 * slide, angle + 0.02 * w, w + 0.02 * turn]
        new = jnp.stack(new, -1)
        fallen = (jnp.abs(new[:, 0]) > 2.4) | (jnp.abs(new[:, 2]) > 0.21)
        return jnp.where(fallen[:, None], 0.01, new)

    def step(p: Any, state: jax.Array, key: Any) -> Any:
        def act(carry: Any, key: Any) -> Any:
            logits = _mlp(p["policy"], carry, jnp.tanh)
            action = jax.random.categorical(key, logits)
            chosen = jnp.take_along_axis(
                jax.nn.log_softmax(logits), action[:, None], -1
            )[:, 0]
            moved = move(carry, 20.0 * action - 10.0)
            reward = 1.0 - jnp.abs(moved[:, 2])
            return moved, (carry, action, chosen, reward)

        end, (states, actions, before, rewards) = lax.scan(
            act, state, jax.random.split(key, 64)
        )

        def gather(total: jax.Array, reward: jax.Array) -> Any:
            total = reward + 0.99 * total
            return total, total

        _, returns = lax.scan(gather, jnp.zeros(state.shape[0]), rewards, reverse=True)

        def loss(p: Any) -> jax.Array:
            logits = jax.nn.log_softmax(_mlp(p["policy"], states, jnp.tanh))
            after = jnp.take_along_axis(logits, actions[..., None], -1)[..., 0]
            value = _mlp(p["value"], states, jnp.tanh)[..., 0]
            gain = lax.stop_gradient(returns - value)
            ratio = jnp.exp(after - before)
            kept = jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain)
            return jnp.mean(0.5 * (value - returns) ** 2) - jnp.mean(kept)

        grad = jax.grad(loss)(p)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, p, grad), end

    p = {"policy": _layers(4, 64, 64, 2), "value": _layers(4, 64, 64, 1, seed=5)}
    return step, (p, _normal(9, 128, 4, scale=0.01), jax.random.key(0))


def recommender() -> Program:
    """Rows of large tables, and a small net on them."""

    def loss(p: Any, users: Any, items: Any, y: jax.Array) -> jax.Array:
        x = [p["users"][users], p["items"][items].mean(1)]
        logit = _mlp(p["net"], jnp.concatenate(x, -1))[:, 0]
        return jnp.mean(jnp.maximum(logit, 0) - logit * y + jax.nn.softplus(-logit))

    p = {
        "users": _normal(0, 20_000, 32, scale=0.1),
        "items": _normal(1, 20_000, 32, scale=0.1),
        "net": _layers(64, 64, 1),
    }
    data = _labels(2, 20_000, 1024), _labels(3, 20_000, 1024, 20)
    return _sgd(loss, p, *data, jnp.ones(1024))


CHOSEN_ON: dict[str, Callable[[], Program]] = {
    f.__name__: f
    for f in (
        mlp_classifier,
        convolutions,
        decoder_language_model,
        lstm,
        message_passing,
        poisson_residual,
        diffusion_unet,
        planar_flow,
        ppo_cart_pole,
        recommender,
    )
}

# --- the others: two of each kind ---


def _of_nets(name: str) -> Callable[[], Program]:
    def make() -> Program:
        net = nets.NETS[name]()
        return _sgd(net.loss, *net.arrays())

    return make


def _of_remat_nets(name: str) -> Callable[[], Program]:
    def make() -> Program:
        loss, args = remat_nets.NETS[name](lambda block: block)
        return _sgd(loss, *args)

    return make


def autoencoder() -> Program:
    def loss(layers: Any, x: jax.Array) -> jax.Array:
        return jnp.mean((_mlp(layers, x, jax.nn.elu) - x) ** 2)

    return _adam(loss, _layers(400, 200, 50, 12, 50, 200, 400), _normal(9, 512, 400))


def graph_attention() -> Program:
    nodes, edges, heads, width = 1500, 9000, 4, 16

    def attend(p: Any, x: jax.Array, send: Any, receive: Any) -> jax.Array:
        h = (x @ p["w"]).reshape(nodes, heads, width)
        score = jax.nn.leaky_relu(
            (h * p["from"]).sum(-1)[send] + (h * p["to"]).sum(-1)[receive]
        )
        highest = jax.ops.segment_max(score, receive, nodes)
        weight = jnp.exp(score - lax.stop_gradient(highest)[receive])
        total = jax.ops.segment_sum(weight, receive, nodes)
        share = weight / (total[receive] + 1e-9)
        mixed = jax.ops.segment_sum(share[..., None] * h[send], receive, nodes)
        return jax.nn.elu(mixed.reshape(nodes, heads * width))

    def loss(p: Any, x: jax.Array, send: Any, receive: Any, y: Any) -> jax.Array:
        for layer in p["layers"]:
            x = attend(layer, x, send, receive)
        return _cross_entropy(x @ p["out"], y)

    def layer(seed: int) -> dict[str, jax.Array]:
        return {
            "w": _normal(seed, 64, 64),
            "from": _normal(seed + 1, heads, width),
            "to": _normal(seed + 2, heads, width),
        }

    p = {"layers": [layer(0), layer(10)], "out": _normal(20, 64, 7)}
    data = _normal(9, nodes, 64), _labels(1, nodes, edges), _labels(2, nodes, edges)
    return _adam(loss, p, *data, _labels(3, 7, nodes))


def molecules() -> Program:
    """Small dense graphs, a batch of them, with a matrix of distances each."""

    def loss(p: Any, atoms: jax.Array, places: jax.Array, y: jax.Array) -> jax.Array:
        apart = places[:, :, None] - places[:, None]
        distance = jnp.sqrt((apart**2).sum(-1) + 1e-6)
        radial = jnp.exp(-4 * (distance[..., None] - jnp.linspace(0, 4, 16)) ** 2)
        x = p["embed"][atoms]
        for layer in p["layers"]:
            filters = jax.nn.softplus(radial @ layer["radial"])
            message = jnp.einsum("bijf,bjf->bif", filters, x @ layer["in"])
            x = x + jax.nn.softplus(message @ layer["out"])
        return jnp.mean((_mlp(p["head"], x, jax.nn.softplus).sum((1, 2)) - y) ** 2)

    def layer(seed: int) -> dict[str, jax.Array]:
        return {
            "radial": _normal(seed, 16, 32),
            "in": _normal(seed + 1, 32, 32),
            "out": _normal(seed + 2, 32, 32),
        }

    p = {
        "embed": _normal(0, 10, 32),
        "layers": [layer(1), layer(4), layer(7)],
        "head": _layers(32, 32, 1),
    }
    return _adam(loss, p, _labels(8, 10, 32, 18), _normal(9, 32, 18, 3), jnp.ones(32))


def burgers_residual() -> Program:
    """Derivatives along two directions by `jax.jvp` of `jax.jvp`."""

    def loss(layers: Any, points: jax.Array) -> jax.Array:
        net = lambda xt: _mlp(layers, xt, jnp.sin)[:, 0]
        along = lambda f, axis: (
            lambda z: jax.jvp(f, (z,), (jnp.zeros_like(z).at[:, axis].set(1.0),))[1]
        )
        u, u_x, u_t = net(points), along(net, 0), along(net, 1)
        u_xx = along(u_x, 0)
        residual = u_t(points) + u * u_x(points) - 0.01 * u_xx(points)
        return jnp.mean(residual**2)

    return _adam(loss, _layers(2, 64, 64, 64, 1), _normal(9, 2048, 2))


def audio_unet() -> Program:
    """Convolutions along one axis, strided down and repeated up."""

    def conv(x: jax.Array, w: jax.Array, stride: int = 1) -> jax.Array:
        return lax.conv_general_dilated(
            x, w, (stride,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )

    def loss(p: Any, x: jax.Array, key: Any) -> jax.Array:
        noise = jax.random.normal(key, x.shape)
        y, skips = x + noise, []
        for w in p["down"]:
            y = jax.nn.gelu(conv(y, w, 2))
            skips.append(y)
        for w, skip in zip(p["up"], reversed(skips), strict=True):
            y = jax.nn.gelu(conv(jnp.concatenate([y, skip], -1), w))
            y = jnp.repeat(y, 2, axis=1)
        return jnp.mean((conv(y, p["head"]) - noise) ** 2)

    kernel = lambda seed, a, b: _normal(seed, 5, a, b, scale=(5 * a) ** -0.5)
    p = {
        "down": [kernel(0, 1, 24), kernel(1, 24, 48), kernel(2, 48, 64)],
        "up": [kernel(3, 128, 48), kernel(4, 96, 24), kernel(5, 48, 24)],
        "head": kernel(6, 24, 1),
    }
    return _adam(loss, p, _normal(9, 8, 2048, 1), jax.random.key(0))


def coupling_flow() -> Program:
    """RealNVP: half of the values scale and shift the other half."""

    def loss(p: Any, x: jax.Array) -> jax.Array:
        volume = jnp.zeros(x.shape[0])
        for net in p:
            kept, moved = jnp.split(x, 2, -1)
            scale, shift = jnp.split(_mlp(net, kept, jax.nn.silu), 2, -1)
            scale = jnp.tanh(scale)
            x = jnp.concatenate([moved * jnp.exp(scale) + shift, kept], -1)
            volume += scale.sum(-1)
        return jnp.mean(0.5 * (x**2).sum(-1) - volume)

    p = [_layers(16, 64, 32, seed=10 * i) for i in range(6)]
    return _adam(loss, p, _normal(9, 1024, 32))


def neural_ode() -> Program:
    """Runge-Kutta steps of a small field in a scan."""

    def loss(layers: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        field = lambda x: _mlp(layers, x, jnp.tanh)

        def step(x: jax.Array, _: None) -> Any:
            a = field(x)
            b = field(x + 0.05 * a)
            c = field(x + 0.05 * b)
            d = field(x + 0.1 * c)
            return x + 0.1 / 6 * (a + 2 * b + 2 * c + d), None

        return jnp.mean((lax.scan(step, x, None, length=30)[0] - y) ** 2)

    data = _normal(8, 256, 8), _normal(9, 256, 8)
    return _adam(loss, _layers(8, 64, 64, 8), *data)


def q_learning() -> Program:
    """Several updates on batches drawn from a store of transitions."""

    def step(state: Any, store: Any, key: Any) -> Any:
        target = state[0]

        def update(state: Any, key: Any) -> Any:
            p, moments = state
            rows = jax.random.randint(key, (64,), 0, store["reward"].shape[0])
            s, a, r, t = (store[k][rows] for k in ("state", "action", "reward", "next"))
            best = r + 0.99 * _mlp(target, t).max(-1)

            def loss(p: Any) -> jax.Array:
                q = jnp.take_along_axis(_mlp(p, s), a[:, None], -1)[:, 0]
                return jnp.mean(optax.huber_loss(q, best))

            grad = jax.grad(loss)(p)
            updates, moments = optimizer.update(grad, moments)
            return (optax.apply_updates(p, updates), moments), None

        return lax.scan(update, state, jax.random.split(key, 16))

    optimizer = optax.adam(1e-3)
    p = _layers(8, 128, 128, 4)
    store = {
        "state": _normal(0, 10_000, 8),
        "action": _labels(1, 4, 10_000),
        "reward": _normal(2, 10_000, scale=1.0),
        "next": _normal(3, 10_000, 8),
    }
    return step, ((p, optimizer.init(p)), store, jax.random.key(0))


def reinforce_on_grid() -> Program:
    """Walks on a grid in a scan with a gradient through the policy."""
    side, walkers = 16, 256

    def loss(p: Any, start: jax.Array, key: Any) -> jax.Array:
        def walk(place: jax.Array, key: Any) -> Any:
            x = jax.nn.one_hot(place, side).reshape(walkers, -1)
            logits = jax.nn.log_softmax(_mlp(p, x))
            action = jax.random.categorical(key, lax.stop_gradient(logits))
            moves = jnp.asarray([[0, 1], [1, 0], [0, -1], [-1, 0]])
            place = jnp.clip(place + moves[action], 0, side - 1)
            chosen = jnp.take_along_axis(logits, action[:, None], -1)[:, 0]
            return place, (chosen, jnp.all(place == side - 1, -1))

        _, (chosen, reward) = lax.scan(walk, start, jax.random.split(key, 40))
        return -jnp.mean(chosen.sum(0) * reward.sum(0))

    p = _layers(2 * side, 64, 4)
    return _sgd(loss, p, _labels(9, side, walkers, 2), jax.random.key(0))


def skip_gram() -> Program:
    """Word vectors with negative samples."""

    def loss(p: Any, words: Any, near: Any, key: Any) -> jax.Array:
        other = jax.random.randint(key, (words.shape[0], 8), 0, p["in"].shape[0])
        v = p["in"][words]
        good = (v * p["out"][near]).sum(-1)
        bad = jnp.einsum("bd,bkd->bk", v, p["out"][other])
        return jnp.mean(jax.nn.softplus(-good) + jax.nn.softplus(bad).sum(-1))

    p = {
        "in": _normal(0, 10_000, 64, scale=0.1),
        "out": _normal(1, 10_000, 64, scale=0.1),
    }
    words = _labels(2, 10_000, 2048), _labels(3, 10_000, 2048)
    return _sgd(loss, p, *words, jax.random.key(0))


def click_model() -> Program:
    """Many small tables, and the products of all pairs of their rows."""

    def loss(p: Any, fields: Any, dense: jax.Array, y: jax.Array) -> jax.Array:
        rows = [table[fields[:, i]] for i, table in enumerate(p["tables"])]
        x = jnp.stack([*rows, _mlp(p["bottom"], dense)], 1)
        pairs = jnp.einsum("bfd,bgd->bfg", x, x).reshape(x.shape[0], -1)
        logit = _mlp(p["top"], pairs)[:, 0]
        return jnp.mean(jax.nn.softplus(logit) - y * logit)

    p = {
        "tables": [_normal(i, 2000, 16, scale=0.1) for i in range(12)],
        "bottom": _layers(13, 64, 16),
        "top": _layers(169, 128, 1, seed=5),
    }
    data = _labels(1, 2000, 1024, 12), _normal(2, 1024, 13), jnp.ones(1024)
    return _adam(loss, p, *data)


OTHERS: dict[str, Callable[[], Program]] = {
    "mlp24": _of_nets("mlp24"),
    "autoencoder": autoencoder,
    "resnet34": _of_nets("resnet34"),
    "batch_norm": _of_remat_nets("batch_norm"),
    "transformer12": _of_nets("transformer12"),
    "experts": _of_remat_nets("experts"),
    "gru": _of_remat_nets("gru"),
    "rnn1000": _of_nets("rnn1000"),
    "graph_attention": graph_attention,
    "molecules": molecules,
    "pinn": _of_remat_nets("pinn"),
    "burgers_residual": burgers_residual,
    "unet": _of_nets("unet"),
    "audio_unet": audio_unet,
    "coupling_flow": coupling_flow,
    "neural_ode": neural_ode,
    "q_learning": q_learning,
    "reinforce_on_grid": reinforce_on_grid,
    "skip_gram": skip_gram,
    "click_model": click_model,
}
