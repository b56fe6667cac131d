"""Golden files of the methods whose layers weigh several pairs of factors per token: a fourth independent oracle, in
NumPy and float64.

    python tests/golden/generate_gated.py            (re)write the JSON files in gated/
    python tests/golden/generate_gated.py --check    exit 1 if the files on disk differ

Written from the sources' equations, none from the code under test. A layer is

    W0 x + s sum_i g_i(x) B_i A_i x,    g(x) = softmax(G x).

References
  FedALT     Bian et al., "FedALT: federated fine-tuning through adaptive local training with rest-of-world LoRA", and
             its authors' code: a client trains its own pair (the first) and its mixer G; the second pair is the mean of
             the others' last pairs, 0 before there is any, and stays as it is in local training. Pair and mixer go on
             from where they were. Means are weighted by rows here. A client that joins late starts its own pair
             at the mean of all pairs: the source has every client in every round.
"""

import sys

import numpy as np
from files import HERE, write_or_compare

SEED, RANK, CLASSES, LR, STEPS = 20261, 2, 3, 0.1, 3
H = "head:out.weight"
SMALL = {"layers": {"layer": (5, 4, 1.75)}, "rows": {"a": 6, "b": 3}, "present": ("ab", "ab", "ab")}
LARGE = {
    "layers": {"first": (7, 5, 1.75), "second": (6, 7, 0.5)},
    "rows": {"a": 4, "b": 7, "c": 5},
    "present": ("ab", "b", "abc", "ac", "abc"),  # c joins late; after the second round b has trained alone
}


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


class Problem:
    def __init__(self, layers, rows, present):
        rng = np.random.default_rng(SEED)
        self.layers, self.rows, self.present = layers, rows, present
        self.w0 = {m: 0.5 * rng.standard_normal((out, inp)) for m, (out, inp, _) in layers.items()}
        wide, narrow = list(layers.values())[-1][0], next(iter(layers.values()))[1]
        self.init, self.routers = {H: 0.5 * rng.standard_normal((CLASSES, wide))}, {}
        for m, (out, inp, _) in layers.items():
            self.init[f"{m}.A"] = 0.5 * rng.standard_normal((RANK, inp))
            self.init[f"{m}.B"] = np.zeros((out, RANK))
            self.routers[m] = 0.8 * rng.standard_normal((2, inp))
        self.data = {c: (rng.standard_normal((n, narrow)), rng.standard_normal((n, CLASSES))) for c, n in rows.items()}

    def loss_and_grads(self, t, client):
        """The loss, and its gradient in every tensor of ``t``: per layer the lists of all A_i and of all B_i, and G;
        and H."""
        x, y = self.data[client]
        seen = []
        for m, (_, _, s) in self.layers.items():
            downs, ups, router = t[m]
            gates = softmax(x @ router.T)
            inner = [x @ a.T for a in downs]
            terms = [u @ b.T for u, b in zip(inner, ups, strict=True)]
            z = x @ self.w0[m].T + s * sum(gates[:, i : i + 1] * v for i, v in enumerate(terms))
            seen.append((m, s, x, gates, inner, terms, np.tanh(z)))
            x = np.tanh(z)
        error = x @ t[H].T - y
        loss, grads = 0.5 * np.sum(error**2) / len(y), {H: error.T @ x / len(y)}
        dx = error @ t[H] / len(y)
        for m, s, x, gates, inner, terms, after in reversed(seen):
            downs, ups, router = t[m]
            dz = dx * (1 - after**2)
            by_pair = [s * gates[:, i : i + 1] * dz for i in range(len(ups))]
            d_ups = [d.T @ u for d, u in zip(by_pair, inner, strict=True)]
            d_downs = [(d @ b).T @ x for d, b in zip(by_pair, ups, strict=True)]
            d_gates = s * np.stack([np.sum(dz * v, 1) for v in terms], 1)
            d_logits = gates * (d_gates - np.sum(gates * d_gates, 1, keepdims=True))
            grads[m] = (d_downs, d_ups, d_logits.T @ x)
            dx = dz @ self.w0[m] + d_logits @ router
            dx = dx + sum(d @ b @ a for d, b, a in zip(by_pair, ups, downs, strict=True))
        return loss, grads

    def check_gradients(self):
        """Central differences."""
        rng, client, h = np.random.default_rng(1), next(iter(self.rows)), 1e-5
        t = {m: ([], [], 0.5 * rng.standard_normal((2, inp))) for m, (_, inp, _) in self.layers.items()}
        for m, (out, inp, _) in self.layers.items():
            t[m][0].extend(0.5 * rng.standard_normal((2, RANK, inp)))
            t[m][1].extend(0.5 * rng.standard_normal((2, out, RANK)))
        t[H] = self.init[H].copy()
        _, grads = self.loss_and_grads(t, client)
        flat = [(t[H], grads[H])]
        for m in self.layers:
            (downs, ups, router), (d_downs, d_ups, d_router) = t[m], grads[m]
            flat += [*zip(downs, d_downs, strict=True), *zip(ups, d_ups, strict=True), (router, d_router)]
        for tensor, grad in flat:
            for index in np.ndindex(tensor.shape):
                kept, around = tensor[index], []
                for step in (h, -h):
                    tensor[index] = kept + step
                    around.append(self.loss_and_grads(t, client)[0])
                tensor[index] = kept
                gap = abs((around[0] - around[1]) / (2 * h) - grad[index])
                assert gap < 1e-8, gap


def fedalt(p):
    pairs, weights, mixers, h = {}, {}, {}, p.init[H]

    def mean(clients):
        """The mean of these clients' last pairs; the start where there are none."""
        mass = sum(weights[c] for c in clients)
        if not clients:
            return {m: (p.init[f"{m}.A"], p.init[f"{m}.B"]) for m in p.layers}
        return {m: tuple(sum(weights[c] / mass * pairs[c][m][i] for c in clients) for i in (0, 1)) for m in p.layers}

    rounds = []
    for present in p.present:
        known, done = sorted(pairs), {"sent": {}, "loss": {}, "uploads": {}, "kept": {}}
        trained = {}
        for c in present:
            rest = mean([k for k in known if k != c] or known)  # alone, a client has its own last pair there
            own = pairs.get(c, mean(known))
            mixer = mixers.get(c, p.routers)
            t = {m: ([own[m][0].copy(), rest[m][0]], [own[m][1].copy(), rest[m][1]], mixer[m].copy()) for m in p.layers}
            t[H] = h.copy()
            done["sent"][c] = named(rest) | {H: h}
            done["loss"][c] = p.loss_and_grads(t, c)[0]
            for _ in range(STEPS):
                _, grads = p.loss_and_grads(t, c)
                t[H] -= LR * grads[H]
                for m in p.layers:
                    t[m][0][0] -= LR * grads[m][0][0]
                    t[m][1][0] -= LR * grads[m][1][0]
                    t[m][2][:] -= LR * grads[m][2]
            trained[c] = ({m: (t[m][0][0], t[m][1][0]) for m in p.layers}, {m: t[m][2] for m in p.layers}, t[H])
            done["uploads"][c] = named(trained[c][0]) | {H: t[H]}
            routers = {f"{m}.router": g for m, g in trained[c][1].items()}
            done["kept"][c] = {f"{n[:-1]}p{n[-1]}": v for n, v in named(trained[c][0]).items()} | routers
        for c, (pair, mixer, _) in trained.items():
            pairs[c], mixers[c], weights[c] = pair, mixer, p.rows[c]
        mass = sum(p.rows[c] for c in present)
        h = sum(p.rows[c] / mass * trained[c][2] for c in present)
        done["newcomer"] = named(mean(sorted(pairs))) | {H: h}
        rounds.append(done)
    return rounds


def named(pairs):
    return {f"{m}.{n}": t for m, pair in pairs.items() for n, t in zip("AB", pair, strict=True)}


METHODS = {"fedalt": (fedalt, SMALL), "fedalt-absent": (fedalt, LARGE)}


def listed(tree):
    if isinstance(tree, dict):
        return {k: listed(v) for k, v in tree.items()}
    return [listed(v) for v in tree] if isinstance(tree, list) else np.asarray(tree).tolist()


def golden(name):
    rule, of = METHODS[name]
    p = Problem(**of)
    p.check_gradients()
    return {
        "lr": LR,
        "steps": STEPS,
        "scale": {m: s for m, (_, _, s) in p.layers.items()},
        "W0": listed(p.w0),
        "init": listed(p.init),
        "routers": listed(p.routers),
        "clients": {c: {"x": x.tolist(), "y": y.tolist()} for c, (x, y) in p.data.items()},
        "expected": listed(rule(p)),
    }


if __name__ == "__main__":
    sys.exit(write_or_compare(__doc__, HERE / "gated", METHODS, golden))
