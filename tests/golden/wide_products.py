"""The methods of ``generate_wide.py`` whose server forms products, decompositions or Gram matrices."""

import numpy as np
from generate import minimum
from wide_averages import FedIT, FFALoRA, Whole, names
from wide_problem import RANK, RANKS, SCALES, SHAPES, H, change, close, descend, named, svd


def products(uploads, p, m):
    """sum p_k B_k A_k, dense."""
    return sum(p[c] * sent[f"{m}.B"] @ sent[f"{m}.A"] for c, sent in uploads.items())


class FlexLoRA(FedIT):
    """D = sum p_k B_k A_k = U S V^T; A = S^(1/2) V^T, B = U S^(1/2), of which a client gets the first r_k. Where D has
    fewer directions than the run's rank, the last rows of A stay and their columns of B are zero.

    A client of rank r_k has the scale s r / r_k: its B starts as r_k / r times the server's and is sent times r / r_k.
    """

    def ratio(self, client):
        return RANK / RANKS[client]

    def given(self, client):
        t = super().given(client)
        return t | {n: t[n] / self.ratio(client) for n in names("B")}

    def train(self, t, client, w, seen):
        after = descend(w, seen, self.data[client], self.trained(t), ratio=self.ratio(client))
        return {n: after[n] * (self.ratio(client) if n in names("B") else 1.0) for n in self.trained(t)}

    def product(self, uploads, p, m):
        return products(uploads, p, m)

    def server(self, t, uploads, p):
        for m in SHAPES:
            u, sigma, vt = svd(self.product(uploads, p, m))
            a, b = self.state[f"{m}.A"].copy(), np.zeros((SHAPES[m][0], RANK))
            a[: len(sigma)], b[:, : len(sigma)] = np.sqrt(sigma)[:, None] * vt, u * np.sqrt(sigma)
            self.state = self.state | named(m, {"A": a, "B": b})
        self.state[H] = sum(p[c] * sent[H] for c, sent in uploads.items())


class FedHM(FlexLoRA):
    """FlexLoRA with the roots on both sides, every client at the run's scale."""

    def ratio(self, client):
        return 1.0


class RaFLoRA(FedHM):
    """FedHM, but each slot's product B_k[:, i] A_k[i] is averaged over the clients of the round whose rank reaches it,
    their weights scaled to a sum of 1. The slots beyond all of them stay the server's."""

    def product(self, uploads, p, m):
        a, b = self.state[f"{m}.A"], self.state[f"{m}.B"]
        total = np.zeros(SHAPES[m])
        for i in range(RANK):
            sent = {c: np.outer(t[f"{m}.B"][:, i], t[f"{m}.A"][i]) for c, t in uploads.items() if RANKS[c] > i}
            mass = sum(p[c] for c in sent)
            total = total + (sum(p[c] / mass * part for c, part in sent.items()) if sent else np.outer(b[:, i], a[i]))
        return total


class FedMomentum(FedHM):
    """FedHM, and what the truncations drop is added up and goes to the base, times s, after every tau-th round. Until
    then it is no part of the model."""

    ranked = False

    def start(self):
        self.pending = {m: np.zeros(shape) for m, shape in SHAPES.items()}
        return super().start()

    def server(self, t, uploads, p):
        super().server(t, uploads, p)
        for m in SHAPES:
            rest = self.product(uploads, p, m) - self.state[f"{m}.B"] @ self.state[f"{m}.A"]
            self.pending[m] = self.pending[m] + rest
            if (t + 1) % self.fields["tau"] == 0:
                self.base[m] = self.base[m] + SCALES[m] * self.pending[m]
                self.pending[m] = np.zeros(SHAPES[m])


class FLoRA(FlexLoRA):
    """The stacks [B_1 .. B_K] [p_1 A_1; ..; p_K A_K] go to the base; a client starts each round from an A of its own
    and B = 0, at the scale s r / r_k."""

    def start(self):
        return {H: self.lora[H]}

    def given(self, client):
        t = dict(self.state)
        for m, (out, _) in SHAPES.items():
            t |= named(m, {"A": self.draw(m, RANKS[client]), "B": np.zeros((out, RANKS[client]))})
        return t

    def server(self, t, uploads, p):
        for m in SHAPES:
            stack_b = np.hstack([sent[f"{m}.B"] for sent in uploads.values()])
            stack_a = np.vstack([p[c] * sent[f"{m}.A"] for c, sent in uploads.items()])
            self.base = self.base | {m: self.base[m] + SCALES[m] * stack_b @ stack_a}
        self.state = {H: sum(p[c] * sent[H] for c, sent in uploads.items())}

    def model(self):
        return dict(self.base)


class FLoRIST(FLoRA):
    """FLoRA, but of the stack U S V^T only the first p directions go to the base: the fewest whose squares are a share
    tau of the sum of all."""

    def server(self, t, uploads, p):
        before = self.base
        super().server(t, uploads, p)
        for m in SHAPES:
            u, sigma, vt = np.linalg.svd(self.base[m] - before[m], full_matrices=False)
            share = np.cumsum(sigma**2) / np.sum(sigma**2)
            assert np.abs(share - self.fields["tau"]).min() > 1e-3, share
            kept = [i for i in range(len(sigma)) if i == 0 or share[i - 1] < self.fields["tau"]]
            self.base = self.base | {m: before[m] + (u[:, kept] * sigma[kept]) @ vt[kept]}


class FedExLoRA(Whole):
    """W0 <- W0 + s (sum p_k B_k A_k - Bbar Abar)."""

    def server(self, t, uploads, p):
        super().server(t, uploads, p)
        for m in SHAPES:
            residual = products(uploads, p, m) - self.state[f"{m}.B"] @ self.state[f"{m}.A"]
            self.base[m] = self.base[m] + SCALES[m] * residual


class FedSVD(FFALoRA):
    """FFA-LoRA; every second round B A = U S V^T, A <- V^T, B <- U S."""

    def server(self, t, uploads, p):
        super().server(t, uploads, p)
        if (t + 1) % self.fields["period"] == 0:
            for m in SHAPES:
                u, sigma, vt = svd(self.state[f"{m}.B"] @ self.state[f"{m}.A"])
                self.state |= named(m, {"A": vt, "B": u * sigma})


class FeDeRA(Whole):
    """W0 = U S V^T: A = (S / s)^(1/2) V^T, B = U (S / s)^(1/2), and W0 - s B A is the base. Then the best rank r of
    sum p_k B_k A_k, with the roots in both."""

    def start(self):
        t = super().start()
        for m in SHAPES:
            u, sigma, vt = svd(self.w0[m])
            root = np.sqrt(sigma / SCALES[m])
            t |= named(m, {"A": root[:, None] * vt, "B": u * root})
            self.base[m] = -change(t, m)
        return t

    def server(self, t, uploads, p):
        super().server(t, uploads, p)
        for m in SHAPES:
            u, sigma, vt = svd(products(uploads, p, m))
            root = np.sqrt(sigma)
            self.state |= named(m, {"A": root[:, None] * vt, "B": u * root})


class LoRAFAIR(Whole):
    """Eq. (8): B' minimises penalty |B' - Bbar| - cos(M, B' Abar), A' = Abar, each layer by itself; or with squared
    norms, "frobenius", penalty |B' - Bbar|^2 + |M - B' Abar|^2."""

    def server(self, t, uploads, p):
        super().server(t, uploads, p)
        corrected = self.frobenius if self.fields["objective"] == "frobenius" else self.cosine
        for m in SHAPES:
            new = corrected(self.state[f"{m}.A"], self.state[f"{m}.B"], products(uploads, p, m), self.fields["penalty"])
            self.state |= {f"{m}.B": new}

    def frobenius(self, a, b, product, penalty):
        """Where the gradient is zero."""
        new = (product @ a.T + penalty * b) @ np.linalg.inv(a @ a.T + penalty * np.eye(RANK))
        assert close((new @ a - product) @ a.T + penalty * (new - b), 0.0)
        return new

    def cosine(self, a, b, product, penalty):
        """By descent from Bbar, which stays if the cosine's slope there is not steeper than the penalty."""

        def similarity(z):
            return np.sum(product * (z @ a)) / np.linalg.norm(product) / np.linalg.norm(z @ a)

        def slope(z):
            size = np.linalg.norm(z @ a)
            return (product / np.linalg.norm(product) - similarity(z) * z @ a / size) @ a.T / size

        def objective(z):
            return penalty * np.linalg.norm(z - b) - similarity(z)

        if np.linalg.norm(slope(b)) <= penalty:
            return b
        new = minimum(objective, lambda z: penalty * (z - b) / np.linalg.norm(z - b) - slope(z), b + 1e-3 * slope(b))
        assert objective(new) < objective(b)
        return new


class SLoRA(Whole):
    """Two rounds of the values S of a change s D, zero but at the same positions for all; then D = U S V^T, B <- U S,
    A <- V^T of rank r, and FedIT."""

    def start(self):
        t = {H: self.lora[H]}
        for m, (out, inp) in SHAPES.items():
            count = round(self.fields["density"] * out * inp)
            where = np.sort(self.rng.choice(out * inp, count, replace=False))
            t |= named(m, {"I": where, "S": np.zeros(count)})
        return t

    def trained(self, t):
        return (*names("S" if t < self.fields["sparse_rounds"] else "AB"), H)

    def server(self, t, uploads, p):
        super().server(t, uploads, p)
        if t == self.fields["sparse_rounds"] - 1:
            for m in SHAPES:
                u, sigma, vt = svd(change(self.state, m) / SCALES[m])
                self.state |= named(m, {"A": vt, "B": u * sigma})
            self.state = {n: v for n, v in self.state.items() if n not in names("SI")}


class FLoRG(Whole):
    """Q = sum p_n G_n^T G_n (4), Gtil^T Gtil = Q (7), G <- U V^T Gtil with U S V^T = G Gtil^T (11). The base is lower
    by the first s L G^T G R ("offset")."""

    letters = "G"

    def start(self):
        for m in SHAPES:
            self.base[m] = -change(self.gram, m)
        return dict(self.gram)

    def server(self, t, uploads, p):
        for m in SHAPES:
            q = sum(p[c] * sent[f"{m}.G"].T @ sent[f"{m}.G"] for c, sent in uploads.items())
            values, vectors = np.linalg.eigh(q)
            order = [i for i in np.argsort(-values) if values[i] > 1e-10 * values.max()]
            root = np.sqrt(values[order])[:, None] * vectors[:, order].T
            assert close(root.T @ root, q)
            self.state = self.state | {f"{m}.G": self.refactor(self.state[f"{m}.G"], root)}
        self.state[H] = sum(p[c] * sent[H] for c, sent in uploads.items())

    def refactor(self, g, root):
        u, _, vt = np.linalg.svd(g @ root.T, full_matrices=False)
        return u @ vt @ root


class FLoRGUnaligned(FLoRG):
    """The r rows of Gtil with the largest eigenvalues, each with its largest entry positive."""

    def refactor(self, g, root):
        _, sigma, vt = svd(root.T @ root)
        return np.sqrt(sigma)[:, None] * vt
