"""The problem of ``generate_wide.py``: two adapted layers of different shape and scale, and clients that miss rounds.

z = tanh(W1 x), u = tanh(W2 z), the prediction is H u, and a client's loss is the mean over its rows of
0.5 |prediction - y|^2. Tensors are flat: "first.A" is A of the first layer. A layer's weight is W0 + C + its change,
C being what the server added to the base so far. All gradients are derived by hand and checked by differences.
"""

import numpy as np
from generate import orthonormal, row_signs

SEED = 20261
SHAPES = {"first": (5, 4), "second": (6, 5)}  # out, in
SCALES = {"first": 1.75, "second": 0.5}
RANK, CLASSES, LR, STEPS = 3, 3, 0.3, 3
ROWS = {"a": 6, "b": 3, "c": 4}
RANKS = {"a": RANK, "b": 2, "c": 1}  # of the clients, where a method lets them differ
PRESENT = ("ab", "bc", "c", "ac", "abc", "b")  # the clients of each round
H = "head:out.weight"
NESTED = 0.3  # mFedLoRU: its alpha_A and alpha_B


def make_problem(seed=SEED):
    """W0 by layer, the clients' rows, PEFT's A and B, FLoRG's G, L and R, the head, and the generator."""
    rng = np.random.default_rng(seed)
    w0 = {m: 0.5 * rng.standard_normal(shape) for m, shape in SHAPES.items()}
    data = {c: (rng.standard_normal((n, 4)), rng.standard_normal((n, CLASSES))) for c, n in ROWS.items()}
    head = {H: 0.5 * rng.standard_normal((CLASSES, 6))}
    lora, gram = {}, {}
    for m, (out, inp) in SHAPES.items():
        k = min(out, inp)
        lora |= {f"{m}.A": fresh_a(rng, m), f"{m}.B": np.zeros((out, RANK))}
        gram |= {f"{m}.G": 0.5 * rng.standard_normal((RANK, k))}
        gram |= {f"{m}.L": orthonormal(rng, out, k), f"{m}.R": orthonormal(rng, inp, k).T}
    return w0, data, lora | head, gram | head, rng


def fresh_a(rng, m, rank=RANK):
    return 0.5 * rng.standard_normal((rank, SHAPES[m][1]))


def part(t, m):
    """The tensors of layer m by their letters."""
    return {n.rpartition(".")[2]: v for n, v in t.items() if n.startswith(f"{m}.")}


def named(m, tensors):
    return {f"{m}.{letter}": v for letter, v in tensors.items()}


# --- a layer's change, and the gradients of its tensors from that of its weight -----


def sparse(p, m):
    """SLoRA's D: zero but for the positions I, which count along the rows."""
    flat = np.zeros(SHAPES[m][0] * SHAPES[m][1])
    flat[p["I"]] = p["S"]
    return flat.reshape(SHAPES[m])


def grown(p):
    """mFedLoRU's eq. (83): A + c Au Ad and B + c Bu Bd."""
    if "Ad" not in p:
        return p["A"], p["B"]
    return p["A"] + NESTED * p["Au"] @ p["Ad"], p["B"] + NESTED * p["Bu"] @ p["Bd"]


def heads(p):
    """RAVAN: s_i, B_i, H_i and A_i of each head; the H_i are stacked in C. Fed-SB has one head, and s = 1."""
    width = p["C"].shape[1]
    for i in range(len(p["C"]) // width):
        rows = slice(i * width, (i + 1) * width)
        yield p["s"][i] if "s" in p else 1.0, p["L"][:, rows], p["C"][rows], p["R"][rows]


def change(t, m, ratio=1.0):
    """The change of layer m's weight. ``ratio``: a client's own scale over the run's, where it has one."""
    p, s = part(t, m), ratio * SCALES[m]
    if "C" in p:  # Fed-SB, RAVAN
        return s * sum(s_i * b @ h @ a for s_i, b, h, a in heads(p))
    if "G" in p:  # FLoRG eq. (1)
        return s * p["L"] @ p["G"].T @ p["G"] @ p["R"]
    if "S" in p:  # SLoRA, stage 1
        return s * sparse(p, m)
    if "D" in p:  # pFedLoRA, W itself moves: W0 + D + s pB pA
        return p["D"] + (s * p["pB"] @ p["pA"] if "pA" in p else 0.0)
    a, b = grown(p)
    return s * b @ a + (s * p["pB"] @ p["pA"] if "pA" in p else 0.0)


def layer_grads(t, m, d, ratio):
    """From d, the gradient of layer m's weight."""
    p, s, g = part(t, m), ratio * SCALES[m], {}
    if "G" in p:  # FLoRG eq. (2)
        h = s * p["L"].T @ d @ p["R"].T
        g["G"] = p["G"] @ (h + h.T)
    elif "C" in p:
        g["C"] = np.vstack([s_i * s * b.T @ d @ a.T for s_i, b, _, a in heads(p)])
        if "s" in p:
            g["s"] = np.array([s * np.sum(h * (b.T @ d @ a.T)) for _, b, h, a in heads(p)])
    elif "S" in p:
        g["S"] = s * d.ravel()[p["I"]]
    elif "D" in p:
        g["D"] = d
    else:
        a, b = grown(p)
        g["A"], g["B"] = s * b.T @ d, s * d @ a.T
    if "Ad" in p:
        g |= {"Ad": NESTED * p["Au"].T @ g["A"], "Au": NESTED * g["A"] @ p["Ad"].T}
        g |= {"Bd": NESTED * p["Bu"].T @ g["B"], "Bu": NESTED * g["B"] @ p["Bd"].T}
    if "pA" in p:
        g |= {"pA": s * p["pB"].T @ d, "pB": s * d @ p["pA"].T}
    return named(m, g)


def loss_and_grads(w, t, rows, ratio=1.0):
    """The loss and the gradient of every trained tensor of ``t``; w: W0 + C by layer."""
    x, y = rows
    w1, w2 = (w[m] + change(t, m, ratio) for m in SHAPES)
    z = np.tanh(x @ w1.T)
    u = np.tanh(z @ w2.T)
    error = u @ t[H].T - y
    d_pred = error / len(x)
    d_second = (d_pred @ t[H]) * (1 - u**2)
    d_first = (d_second @ w2) * (1 - z**2)
    grads = {H: d_pred.T @ u}
    grads |= layer_grads(t, "first", d_first.T @ x, ratio)
    grads |= layer_grads(t, "second", d_second.T @ z, ratio)
    return 0.5 * np.sum(error**2) / len(x), grads


def descend(w, t, rows, names, *, steps=STEPS, lr=LR, ratio=1.0, extra=None, masks=None):
    """Full-batch gradient steps on the named tensors.

    ``extra``: gradients of a further term of the objective, as a function of t.
    ``masks``: where alone a tensor moves.
    """
    for _ in range(steps):
        _, grads = loss_and_grads(w, t, rows, ratio)
        more = extra(t) if extra else {}
        moved = {n: grads[n] + more.get(n, 0.0) for n in names}
        t = t | {n: t[n] - lr * g * (masks or {}).get(n, 1.0) for n, g in moved.items()}
    return t


# --- matrices -----------------------------------------------------------------------


def svd(matrix, rank=RANK):
    """The first ``rank`` of U, S, V^T, or as many as are not zero. In each row of V^T the entry of largest absolute
    value is positive. That all of it is unique is asserted."""
    u, sigma, vt = np.linalg.svd(matrix)
    found = min(rank, int(np.sum(sigma > 1e-10 * sigma[0])))
    assert (-np.diff(sigma[: found + 1])).min(initial=1.0) > 1e-4 * sigma[0], sigma
    u, sigma, vt = u[:, :found], sigma[:found], vt[:found]
    second, peak = np.sort(np.abs(vt), axis=1)[:, -2:].T
    assert (peak - second).min() > 1e-4, vt
    return u * row_signs(vt).T, sigma, row_signs(vt) * vt


def close(a, b):
    return np.allclose(a, b, rtol=0, atol=1e-12)


def check_gradients(h=1e-6, tolerance=1e-8):
    """The largest gap between the gradients and central differences, at points where no tensor is zero."""
    w0, data, lora, gram, rng = make_problem()
    pair, inner, whole, values, between, many = {}, {}, {}, {}, {}, {}
    for m, (out, inp) in SHAPES.items():
        lora[f"{m}.B"] = rng.standard_normal((out, RANK))
        pair |= named(m, {"pA": fresh_a(rng, m), "pB": rng.standard_normal((out, RANK))})
        shapes = {"Ad": (2, inp), "Au": (RANK, 2), "Bd": (2, RANK), "Bu": (out, 2)}
        inner |= named(m, {n: rng.standard_normal(shape) for n, shape in shapes.items()})
        shapes = {"L": (out, RANK), "C": (RANK, RANK), "R": (RANK, inp)}
        between |= named(m, {n: rng.standard_normal(shape) for n, shape in shapes.items()})
        shapes = {"L": (out, 2 * RANK), "C": (2 * RANK, RANK), "R": (2 * RANK, inp), "s": (2,)}
        many |= named(m, {n: rng.standard_normal(shape) for n, shape in shapes.items()})
        whole[f"{m}.D"] = rng.standard_normal((out, inp))
        values |= named(m, {"I": np.array([1, 4, 6]), "S": rng.standard_normal(3)})
    head, worst = {H: lora[H]}, 0.0
    for t in (
        lora,
        gram,
        lora | pair,
        lora | inner,
        whole | head,
        whole | pair | head,
        values | head,
        between | head,
        many | head,
    ):
        _, grads = loss_and_grads(w0, t, data["b"], 1.5)
        assert len(grads) == len([n for n in t if n[-2:] not in (".L", ".R", ".I")])
        for name, grad in grads.items():
            for i in np.ndindex(grad.shape):
                step = np.zeros(grad.shape)
                step[i] = h
                ends = [loss_and_grads(w0, t | {name: t[name] + d}, data["b"], 1.5)[0] for d in (step, -step)]
                worst = max(worst, abs((ends[0] - ends[1]) / (2 * h) - grad[i]))
    assert worst < tolerance, worst
    return worst
