"""The methods of ``generate_whole.py`` whose clients keep a whole model of their own beside a shared one."""

import numpy as np
from whole_problem import LR
from whole_shared import FedAvg, minus, pick, plus


class Ditto(FedAvg):
    """Li et al. 2021: w by FedAvg; v <- v - eta (grad F_k(v) + lambda (v - w)), w being the received model and constant
    in the round. v takes ``epochs``, of which w may take another number. v starts at the first model that the client
    receives."""

    def own(self, client):
        return self.local.get(client, self.state)

    def model(self, client):
        return self.own(client)

    def train(self, t, client):
        received = self.state

        def pull(v):
            return {n: self.fields["lambda"] * (v[n] - received[n]) for n in self.net.trained}

        v, epochs = self.own(client), self.fields["epochs"]
        self.local[client] = self.net.descend(v, client, self.net.trained, epochs=epochs, extra=pull)
        return super().train(t, client)


class APFL(FedAvg):
    """Deng et al. 2020, Algorithm 1, alpha fixed: in each step, both from the values before it,
    w <- w - eta grad F(w) and v <- v - eta alpha grad F(mix), mix = alpha v + (1 - alpha) w. The client's model is the
    mix with the received w. v starts at the first model that the client receives. v's statistics are the mix's own:
    passes at the mix change them, and nothing mixes them."""

    def own(self, client):
        return self.local.get(client, self.state)

    def mix(self, v, w, alpha=None):
        alpha = self.fields["alpha"] if alpha is None else alpha
        return v | {n: alpha * v[n] + (1 - alpha) * w[n] for n in self.net.trained}

    def model(self, client):
        return self.mix(self.own(client), self.state)

    def train(self, t, client):
        v, w = self.own(client), self.state
        for rows in self.net.pieces(client):
            mix = self.mix(v, w)
            at_mix, at_w = self.net.grads(mix, rows), self.net.grads(w, rows)
            v, w = v | self.net.statistics(mix, rows), w | self.net.statistics(w, rows)
            v, w = plus(v, -LR * self.fields["alpha"], at_mix), plus(w, -LR, at_w)
        self.local[client] = v
        return w


class APFLAdaptive(APFL):
    """Each client has an alpha of its own, alpha <- alpha - eta <v - w, grad F(mix)> from the values before the step,
    kept within 0 and 1, in every step, as the paper's equation counts (its code: in the first of a round). Later steps
    and the model take the new alpha."""

    def alpha(self, client):
        return float(self.local.get(client, {"alpha": self.fields["alpha"]})["alpha"])

    def own(self, client):
        return {n: v for n, v in self.local.get(client, self.state).items() if n != "alpha"}

    def model(self, client):
        return self.mix(self.own(client), self.state, self.alpha(client))

    def train(self, t, client):
        v, w, alpha = self.own(client), self.state, self.alpha(client)
        for rows in self.net.pieces(client):
            at_mix, at_w = self.net.grads(self.mix(v, w, alpha), rows), self.net.grads(w, rows)
            slope = sum(np.sum((v[n] - w[n]) * at_mix[n]) for n in at_mix)
            v, w = plus(v, -LR * alpha, at_mix), plus(w, -LR, at_w)
            alpha = min(max(alpha - LR * slope, 0.0), 1.0)
        self.local[client] = v | {"alpha": np.array(alpha)}
        return w


class APFLBlend(APFL):
    """PFLlib's reading: v is trained at v, and after the epochs v <- alpha v + (1 - alpha) w_k, w_k being the client's
    own w of this round. The client's model is v."""

    def model(self, client):
        return self.own(client)

    def train(self, t, client):
        v = self.net.descend(self.own(client), client, self.net.trained)
        w = FedAvg.train(self, t, client)
        self.local[client] = self.mix(v, w)
        return w


class L2GD(FedAvg):
    """Hanzely and Richtarik 2020, Algorithm 1: a coin for all clients. 0, with probability 1 - p:
    x_i -= alpha / (n (1 - p)) grad F_i(x_i). 1: x_i -= alpha lambda / (n p) (x_i - xbar), xbar being the mean of all
    x_i, which pulls leave as it is. So clients send x_i only when a 1 follows a 0, and a round is what comes before:
    ones, then zeros. The first round's ones would change nothing. n: all clients.

    A 0 is E epochs here. Statistics are not pulled. Where some clients are absent, xbar is the mean over those that
    sent last, and x_i starts at the first xbar that the client receives."""

    weighting = "uniform"

    def start(self):
        text = "".join(map(str, self.fields["coins"]))
        self.blocks = [[int(coin) for coin in block] for block in text.replace("01", "0 1").split()]
        assert len(self.blocks) == len(self.present)
        return super().start()

    def own(self, client):
        return self.local.get(client, self.state)

    def model(self, client):
        return self.own(client)

    def train(self, t, client):
        alpha, lam, p, n = (self.fields[k] for k in ("alpha", "lambda", "p", "n"))
        x = self.own(client)
        for coin in self.blocks[t]:
            if coin:
                x = plus(x, -alpha * lam / (n * p), minus(pick(x, self.net.trained), self.state))
            else:
                x = self.net.descend(x, client, self.net.trained, lr=alpha / (n * (1 - p)))
        self.local[client] = x
        return x


class FedMTL(FedAvg):
    """Smith et al. 2017 with the fixed relationship of mean-regularised multi-task learning, Omega = I - 11^T / m:
    sum F_i(w_i) + lambda / 2 sum |w_i - wbar|^2, so w_i <- w_i - eta (grad F_i(w_i) + lambda (w_i - wbar)). wbar is the
    uniform mean of the models sent last and constant in the round. w_i starts at the first wbar that the client
    receives."""

    weighting = "uniform"

    def own(self, client):
        return self.local.get(client, self.state)

    def model(self, client):
        return self.own(client)

    def train(self, t, client):
        centre = self.state

        def pull(w):
            return {n: self.fields["lambda"] * (w[n] - centre[n]) for n in self.net.trained}

        self.local[client] = self.net.descend(self.own(client), client, self.net.trained, extra=pull)
        return self.local[client]
