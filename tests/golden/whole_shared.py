"""The methods of ``generate_whole.py`` with one model or one split model, and the rounds that all methods share."""

import numpy as np
from whole_problem import LR, ROWS

PRESENT = ("ab", "bc", "d", "acd", "abcd", "bd")  # the clients of each round; e never takes part
NEWCOMER = "e"


def pick(t, names):
    return {n: t[n] for n in names}


def mean(uploads, p):
    return {n: sum(p[c] * sent[n] for c, sent in uploads.items()) for n in next(iter(uploads.values()))}


def plus(t, factor, change):
    """t + factor * change on the names of ``change``."""
    return t | {n: t[n] + factor * d for n, d in change.items()}


def minus(a, b):
    return {n: a[n] - b[n] for n in a}


def control(t):
    """The tensors of SCAFFOLD's control variates, named after those they correct."""
    return {f"control:{n}": v for n, v in t.items()}


class FedAvg:
    """w_k from the received w by E epochs of SGD; the mean over the round's clients, weights n_k."""

    weighting = "examples"  # or "uniform", where the paper prints 1/|S|

    def __init__(self, net, fields):
        self.net, self.fields = net, fields
        self.present = fields.get("present", PRESENT)
        self.local = {}  # by client; what it keeps
        self.state = self.start()

    def start(self):
        return dict(self.net.init)

    def model(self, client):
        """The tensors of the client's model before it trains."""
        return self.state | self.local.get(client, {})

    def train(self, t, client):
        """The client's upload."""
        return self.net.descend(self.state, client, self.net.trained)

    def server(self, t, uploads, p):
        self.state = self.state | mean(uploads, p)

    def adapted(self, client):
        """The model of a client that has never taken part, fitted to its rows; empty: not compared."""
        return {}

    def weights(self, present):
        total = sum(ROWS[c] for c in present)
        if self.weighting == "uniform":
            return {c: 1 / len(present) for c in present}
        return {c: ROWS[c] / total for c in present}

    def run(self):
        expected = []
        for t, present in enumerate(self.present):
            losses, uploads, models = {}, {}, {}
            for c in present:
                models[c] = self.model(c)
                losses[c] = self.net.loss(models[c], c)
            for c in present:
                uploads[c] = self.train(t, c)
            p = self.weights(present)
            if any(uploads.values()):
                self.server(t, uploads, p)
            kept = {c: dict(self.local[c]) for c in present if c in self.local}
            expected.append({"loss": losses, "uploads": uploads, "weights": p, "local": kept, "state": self.state})
            assert {c: loss for c, loss in losses.items() if not (np.isfinite(loss) and loss < 20)} == {}
        return expected


class FedProx(FedAvg):
    """Li et al. 2020: clients minimise F_k(w) + mu/2 |w - w^t|^2."""

    def train(self, t, client):
        received = self.state

        def proximal(w):
            return {n: self.fields["mu"] * (w[n] - received[n]) for n in self.net.trained}

        return self.net.descend(received, client, self.net.trained, extra=proximal)


class FedPer(FedAvg):
    """Arivazhagan et al. 2019: body and head are trained together, the body is averaged, the head stays."""

    def sent(self):
        return (*self.net.body, *self.net.buffers)

    def kept(self):
        return self.net.head

    def train(self, t, client):
        return self.keep(client, self.net.descend(self.model(client), client, self.net.trained))

    def keep(self, client, after):
        self.local[client] = pick(after, self.kept())
        return pick(after, self.sent())

    def adapted(self, client):
        """The start's own part, fitted for a round's epochs, all that is shared being frozen."""
        own = [n for n in self.kept() if n in self.net.trained]
        return self.net.descend(self.model(client), client, own, statistics=set(self.net.buffers) <= set(self.kept()))


class LGFedAvg(FedPer):
    """Liang et al. 2020: the mirror image; the head is averaged, the body stays."""

    def sent(self):
        return self.net.head

    def kept(self):
        return (*self.net.body, *self.net.buffers)


class FedRep(FedPer):
    """Collins et al. 2021, Algorithm 1: the head with the received body, then the body with the new head, each for
    ``head_epochs`` and ``body_epochs``. ``unit``: "updates", as Algorithm 1 counts, or "epochs", as section 5 does."""

    def train(self, t, client):
        unit = self.fields["unit"]
        first, then = ({unit: self.fields[f"{part}_epochs"]} for part in ("head", "body"))
        after = self.net.descend(self.model(client), client, self.net.head, statistics=False, **first)
        return self.keep(client, self.net.descend(after, client, self.net.body, **then))

    def adapted(self, client):
        return {}  # the number of epochs is open


class FedRepUniform(FedRep):
    """With Algorithm 1's mean, 1/(rn), by the run's weighting."""

    weighting = "uniform"


class Local(FedPer):
    """Nothing is sent."""

    def sent(self):
        return ()

    def kept(self):
        return tuple(self.net.init)


class PerFedAvg(FedAvg):
    """Fallah et al. 2020, Algorithm 1: in each step w <- w - beta (I - a H(w)) g, g = grad F(w - a grad F(w; D); D'),
    beta the run's rate. H is of D, so the step is along the gradient of F(w - a grad F(w; D); D').

    ``form``: "first-order" without H; "hessian-free" H(w) g by (grad F(w + d g) - grad F(w - d g)) / (2 d);
    "hessian" H(w) g itself.
    ``support``: the share of a batch's rows that are D, the first ones; D' is the others. None: both are the batch.
    """

    def train(self, t, client):
        w = self.state
        for rows in self.net.pieces(client):
            w = plus(w, -LR, self.meta_gradient(w, *self.divided(rows)))
        return w

    def divided(self, rows):
        """D and D'. Each has a row at least; one row is both."""
        share, count = self.fields["support"], len(rows[0])
        if share is None or count == 1:
            return rows, rows
        size = min(max(round(share * count), 1), count - 1)
        return tuple(part[:size] for part in rows), tuple(part[size:] for part in rows)

    def meta_gradient(self, w, support, target):
        a, form = self.fields["inner_lr"], self.fields["form"]
        g = self.net.grads(plus(w, -a, self.net.grads(w, support)), target)
        if form == "first-order":
            return g
        if form == "hessian":
            return plus(g, -a, self.net.hessian_times(w, support, g))
        d = self.fields["delta"]
        above, below = (self.net.grads(plus(w, s * d, g), support) for s in (1, -1))
        return plus(g, -a / (2 * d), minus(above, below))

    def adapted(self, client):
        """One step of size a: "the model is updated by one step of gradient descent" on the new task."""
        return plus(self.state, -self.fields["inner_lr"], self.net.grads(self.state, self.net.data[client]))


class Scaffold(FedAvg):
    """Karimireddy et al. 2020, Algorithm 1: y <- y - eta (g(y) - c_i + c), K steps from y = x. Option I: c_i+ is
    grad F_i(x) over all rows. Option II: c_i+ = c_i - c + (x - y) / (K eta). The server: x += eta_g mean(y - x),
    c += sum(c_i+ - c_i) / N, both uniform, N being all clients. All control variates start at zero. Running statistics
    are averaged alone. The expected uploads hold y; the change of c_i shows in the state."""

    weighting = "uniform"

    def start(self):
        self.c, self.changes = {n: np.zeros_like(self.net.init[n]) for n in self.net.trained}, []
        return dict(self.net.init) | control(self.c)

    def model(self, client):
        return pick(self.state, self.net.init)

    def train(self, t, client):
        x, names = self.model(client), self.net.trained
        ci = {n: self.local.get(client, control(self.c0()))[f"control:{n}"] for n in names}

        def correction(y):
            return minus(self.c, ci)

        y = self.net.descend(x, client, names, extra=correction)
        if self.fields["option"] == 1:
            new = self.net.grads(x, self.net.data[client])
        else:
            k = len(self.net.pieces(client))
            new = {n: ci[n] - self.c[n] + (x[n] - y[n]) / (k * LR) for n in names}
            self.check_mean(client, x, correction(x), new)
        self.local[client] = control(new)
        self.changes.append(minus(new, ci))
        return y

    def c0(self):
        return {n: np.zeros_like(v) for n, v in self.c.items()}

    def check_mean(self, client, y, correction, new):
        """For plain SGD, option II's c_i+ is the mean of the raw gradients on the way."""
        raw = []
        for rows in self.net.pieces(client):
            raw.append(self.net.grads(y, rows))
            y = plus(plus(y, -LR, raw[-1]), -LR, correction)
        assert [n for n in new if not np.allclose(new[n], sum(g[n] for g in raw) / len(raw), rtol=0, atol=1e-12)] == []

    def server(self, t, uploads, p):
        x, names = self.model(None), self.net.trained
        step = {n: sum(sent[n] - x[n] for sent in uploads.values()) / len(uploads) for n in names}
        for n in names:
            self.c = self.c | {n: self.c[n] + sum(change[n] for change in self.changes) / len(ROWS)}
        self.changes.clear()
        statistics = pick(mean(uploads, p), self.net.buffers)
        self.state = plus(x, self.fields["server_lr"], step) | statistics | control(self.c)
        for n in names:  # sum of all clients' c_i = N c
            total = sum(kept[f"control:{n}"] for kept in self.local.values())
            assert np.allclose(total, len(ROWS) * self.c[n], rtol=0, atol=1e-12)
