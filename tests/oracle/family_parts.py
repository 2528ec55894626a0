"""What the formulas of text_families.py share, in double precision."""
import numpy as np

VOCAB, HIDDEN, INNER, HEADS, LAYERS = 40, 24, 20, 6, 2
HEAD = HIDDEN // HEADS


class Weights:
    """Tensors by name: values around a centre, from hashes of name and index."""

    def __init__(self):
        self.tensors = {}

    def __call__(self, name, *shape, around=0):
        size = 2 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.5
        self.tensors[name] = {"shape": shape, "around": around}
        seed = np.uint32(2166136261)  # FNV-1a
        with np.errstate(over="ignore"):
            for byte in name.encode():
                seed = (seed ^ np.uint32(byte)) * np.uint32(16777619)
            h = seed + np.arange(np.prod(shape), dtype=np.uint32) * np.uint32(2654435761)
            for shift, factor in ((16, 0x85ebca6b), (13, 0xc2b2ae35)):  # MurmurHash3
                h = (h ^ (h >> np.uint32(shift))) * np.uint32(factor)
            h ^= h >> np.uint32(16)
        unit = (h >> np.uint32(8)).astype(np.float64) / 2 ** 23 - 1
        return (around + unit * size).astype(np.float32).astype(np.float64).reshape(shape)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def layer_norm(x, weight, eps, bias=0.0):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight + bias


def heads_of(x, count):
    return x.reshape(len(x), count, -1).transpose(1, 0, 2)


def rope(x, theta, dims=None, scale=1.0):
    """x [heads, T, dim]; pairs (i, i + dims / 2) of the first dims features."""
    dims = dims or x.shape[-1]
    angle = np.arange(x.shape[1])[:, None] * scale * theta ** (-np.arange(0, dims, 2) / dims)
    a, b, rest = x[..., :dims // 2], x[..., dims // 2:dims], x[..., dims:]
    return np.concatenate(
        [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle), rest], -1)


def in_part(rotate, x, share, theta):
    """A rotation of x's whole head, of which only the first `share` of the pairs turn."""
    size = x.shape[-1]
    turned, still = rotate(x, theta), np.arange(size) % (size // 2) >= int(share * size) // 2
    return np.where(still, x, turned)


def attend(q, k, v, scale, added=0.0):
    """Causal; `added` [heads, T, T] joins the scores. Head h reads key head h // group."""
    k, v = (np.repeat(t, len(q) // len(t), 0) for t in (k, v))
    scores = scale * q @ k.transpose(0, 2, 1) + added
    scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
    return (softmax(scores) @ v).transpose(1, 0, 2).reshape(q.shape[1], -1)


def gated(x, gate, up, down, act=silu):
    return (act(x @ gate.T) * (x @ up.T)) @ down.T


def mixture(x, chosen, shares, experts, run=gated):
    """Row by row: the chosen experts' results times their shares."""
    return np.stack([
        sum(s * run(row, *experts[e]) for e, s in zip(ids, weights))
        for row, ids, weights in zip(x, chosen, shares)])


def best(scores, count):
    return np.argsort(-scores, -1, kind="stable")[:, :count]
