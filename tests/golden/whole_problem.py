"""The problems of ``generate_whole.py``: small networks that train whole tensors, and one that trains factors.

z = tanh(norm(W1 x + b1)), u = tanh(W2 z + b2), the prediction is H u + b, and a client's loss is the mean over its rows
of 0.5 |prediction - y|^2. Tensors have torch's names, "head:" before the head's and "buffer:" before statistics.

    plain     no norm; all tensors are trained
    norm      batch normalisation before the first tanh, with running statistics
    factors   no norm and no biases but the head's; W = W0 + s B A, and A, B and the head are trained

All gradients are derived by hand and checked by differences. They use no absolute value and no conjugate, so they are
also right at complex points, and ``hessian_times`` is exact.
"""

import numpy as np

SEED = 20262
INPUTS, CLASSES, RANK = 3, 2, 2
SHAPES = {"first": (4, INPUTS), "second": (3, 4)}  # out, in
SCALES = {"first": 1.75, "second": 0.5}
ROWS = {"a": 6, "b": 3, "c": 4, "d": 5, "e": 2}
LR, EPOCHS, BATCH = 0.2, 2, 4
EPS, MOMENTUM = 1e-5, 0.1  # torch's batch normalisation
H, HB = "head:out.weight", "head:out.bias"
MEAN, VAR = "buffer:norm.running_mean", "buffer:norm.running_var"
KINDS = ("plain", "norm", "factors")


class Network:
    """A kind of network with its starting tensors and its clients' rows."""

    def __init__(self, kind, batch=BATCH, epochs=EPOCHS):
        rng = np.random.default_rng(SEED + KINDS.index(kind))
        self.kind, self.batch, self.epochs = kind, batch, epochs
        self.base = {m: 0.6 * rng.standard_normal(s) for m, s in SHAPES.items()} if kind == "factors" else {}
        self.init = {}
        for m, (out, inp) in SHAPES.items():
            if kind == "factors":
                self.init |= {f"{m}.A": 0.6 * rng.standard_normal((RANK, inp)), f"{m}.B": np.zeros((out, RANK))}
            else:
                self.init |= {f"{m}.weight": 0.6 * rng.standard_normal((out, inp))}
                self.init |= {f"{m}.bias": 0.3 * rng.standard_normal(out)}
        if kind == "norm":
            width = SHAPES["first"][0]
            self.init |= {"norm.weight": 1 + 0.2 * rng.standard_normal(width)}
            self.init |= {"norm.bias": 0.2 * rng.standard_normal(width)}
            self.init |= {MEAN: np.zeros(width), VAR: np.ones(width)}
        self.init |= {H: 0.6 * rng.standard_normal((CLASSES, 3)), HB: 0.3 * rng.standard_normal(CLASSES)}
        self.data = {c: self._rows(rng, n) for c, n in ROWS.items()}

    @staticmethod
    def _rows(rng, count):
        """Rows of a client, which has a map of its own."""
        x = rng.standard_normal((count, INPUTS))
        return x, x @ rng.standard_normal((INPUTS, CLASSES)) + 0.1 * rng.standard_normal((count, CLASSES))

    @property
    def head(self):
        return (H, HB)

    @property
    def body(self):
        """The tensors below the head, without statistics."""
        return tuple(n for n in self.init if n not in (H, HB, *self.buffers))

    @property
    def trained(self):
        return (*self.body, *self.head)

    @property
    def buffers(self):
        return tuple(n for n in self.init if n.startswith("buffer:"))

    def pieces(self, client, epochs=None, updates=None):
        """The batches of a training, in order: consecutive rows, each epoch from the first row on."""
        x, y = self.data[client]
        once = [(x[k : k + self.batch], y[k : k + self.batch]) for k in range(0, len(x), self.batch)]
        count = len(once) * (self.epochs if epochs is None else epochs) if updates is None else updates
        return [once[step % len(once)] for step in range(count)]

    # --- the network ----------------------------------------------------------------

    def weight(self, t, m):
        if self.kind == "factors":
            return self.base[m] + SCALES[m] * t[f"{m}.B"] @ t[f"{m}.A"]
        return t[f"{m}.weight"]

    def bias(self, t, m):
        return 0.0 if self.kind == "factors" else t[f"{m}.bias"]

    def loss_and_grads(self, t, rows):
        """The loss in training and the gradient of every trained tensor."""
        x, y = rows
        w1, w2 = (self.weight(t, m) for m in SHAPES)
        before = x @ w1.T + self.bias(t, "first")
        if self.kind == "norm":
            centred = before - before.mean(0)
            deviation = np.sqrt((centred**2).mean(0) + EPS)
            scaled = centred / deviation
            z = np.tanh(scaled * t["norm.weight"] + t["norm.bias"])
        else:
            z = np.tanh(before)
        u = np.tanh(z @ w2.T + self.bias(t, "second"))
        error = u @ t[H].T + t[HB] - y
        d_pred = error / len(x)
        d_second = (d_pred @ t[H]) * (1 - u**2)
        d_first = (d_second @ w2) * (1 - z**2)
        grads = {H: d_pred.T @ u, HB: d_pred.sum(0)}
        if self.kind == "norm":
            grads |= {"norm.weight": (d_first * scaled).sum(0), "norm.bias": d_first.sum(0)}
            d_scaled = d_first * t["norm.weight"]
            d_first = (d_scaled - d_scaled.mean(0) - scaled * (d_scaled * scaled).mean(0)) / deviation
        for m, d, below in (("first", d_first, x), ("second", d_second, z)):
            grads |= self._layer_grads(t, m, d, below)
        return 0.5 * np.sum(error**2) / len(x), grads

    def _layer_grads(self, t, m, d, below):
        if self.kind == "factors":
            d_w = SCALES[m] * d.T @ below
            return {f"{m}.A": t[f"{m}.B"].T @ d_w, f"{m}.B": d_w @ t[f"{m}.A"].T}
        return {f"{m}.weight": d.T @ below, f"{m}.bias": d.sum(0)}

    def loss(self, t, client):
        return self.loss_and_grads(t, self.data[client])[0]

    def grads(self, t, rows, names=None):
        grads = self.loss_and_grads(t, rows)[1]
        return {n: grads[n] for n in (self.trained if names is None else names)}

    def statistics(self, t, rows):
        """The statistics after a forward pass in training: torch's rule, the variance without bias."""
        if self.kind != "norm":
            return {}
        before = rows[0] @ t["first.weight"].T + t["first.bias"]
        seen = {MEAN: before.mean(0), VAR: before.var(0, ddof=1)}
        return {n: (1 - MOMENTUM) * t[n] + MOMENTUM * value for n, value in seen.items()}

    def hessian_times(self, t, rows, direction):
        """The Hessian times ``direction``, exactly: the gradient's derivative by a complex step."""
        h = 1e-30
        moved = self.grads({n: t[n] + 1j * h * direction[n] for n in self.trained}, rows)
        return {n: g.imag / h for n, g in moved.items()}

    def descend(self, t, client, names, *, epochs=None, updates=None, lr=LR, extra=None, statistics=True):
        """Gradient steps on the named tensors, batch after batch.

        ``extra``: what is added to the gradient, as a function of t.
        ``statistics``: whether forward passes change the running statistics.
        """
        for rows in self.pieces(client, epochs, updates):
            grads = self.grads(t, rows, names)
            more = extra(t) if extra else {}
            seen = self.statistics(t, rows) if statistics else {}
            t = t | seen | {n: t[n] - lr * (g + more.get(n, 0.0)) for n, g in grads.items()}
        return t


def check_gradients(h=1e-6, tolerance=1e-8):
    """The largest gap between gradients, Hessian products and central differences, no tensor being zero."""
    worst = 0.0
    for kind in KINDS:
        net, rng = Network(kind), np.random.default_rng(7)
        t = {n: v + 0.3 * rng.standard_normal(v.shape) for n, v in net.init.items()}
        rows, direction = net.data["a"], {n: rng.standard_normal(t[n].shape) for n in net.trained}
        grads = net.grads(t, rows)
        assert set(net.loss_and_grads(t, rows)[1]) == set(net.trained)
        for name, grad in grads.items():
            for i in np.ndindex(grad.shape):
                step = np.zeros(grad.shape)
                step[i] = h
                ends = [net.loss_and_grads(t | {name: t[name] + d}, rows)[0] for d in (step, -step)]
                worst = max(worst, abs((ends[0] - ends[1]) / (2 * h) - grad[i]))
        ends = [net.grads({n: t[n] + d * direction[n] for n in net.trained}, rows) for d in (h, -h)]
        for name, product in net.hessian_times(t, rows, direction).items():
            worst = max(worst, np.abs((ends[0][name] - ends[1][name]) / (2 * h) - product).max())
    assert worst < tolerance, worst
    return worst
