"""Golden files of five federated low-rank algorithms: an independent oracle.

Written from the papers with NumPy alone, in float64; it shares no code with the
package under test. It favours the papers' literal form over speed.

    python tests/golden/generate.py            (re)write one JSON an algorithm
    python tests/golden/generate.py --check    exit 1 if the files on disk differ

Notation (PEFT's orientation): W_eff = W0 + s B A, A is r x in (DOWN), B is out x r
(UP). The network is z = tanh(W_eff x), prediction H z; a client's loss is the mean
over its rows of 0.5 ||prediction - y||^2. A client runs LOCAL_STEPS of plain
full-batch gradient descent on all its trained tensors at once. Client weights are
p_n = n_n / sum_j n_j. (RoLoRA and FLoRG print 1/N, the equal-size case.) The head H
is trained, uploaded and averaged in every round by every algorithm; what a paper
itself says of its head, if anything, is not modelled.

References
  FedIT      Zhang et al., "Towards building the federated GPT"; factor-wise FedAvg,
             right-hand side of eq. (2) in the RoLoRA paper.
  FFA-LoRA   Sun et al., "Improving LoRA in privacy-preserving federated learning";
             A frozen at its random start, B averaged.
  RoLoRA     Chen et al., NeurIPS: Algorithm 1, eqs. (3) and (4). Its row-vector
             letters transpose ours: its B is our B^T, its A our A^T.
  FedSA-LoRA Guo et al., "Selective aggregation for low-rank adaptation in federated
             learning": A is shared, B never leaves its client.
  FLoRG      "Federated fine-tuning with low-rank Gram matrices and Procrustes
             alignment": eqs. (1)-(12), Theorem 1, Algorithm 1. Its A is our G; s,
             absent from its eq. (1), multiplies the update.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import numpy as np

SEED = 20260
OUT, IN, RANK, CLASSES = 5, 4, 2, 3
SCALE, LR, LOCAL_STEPS = 1.75, 0.1, 3
ROWS = {"a": 6, "b": 3}
P = {c: n / sum(ROWS.values()) for c, n in ROWS.items()}
A, B, G, L, R = (f"layer.{x}" for x in "ABGLR")
H = "head:out.weight"


def orthonormal(rng, rows, cols):
    """A rows x cols matrix with orthonormal columns (rows >= cols)."""
    q, upper = np.linalg.qr(rng.standard_normal((rows, cols)))
    return q * np.sign(np.diag(upper))  # unique: the triangular factor's diagonal > 0


def make_problem():
    """Base weight, client data and starting tensors, the same for every algorithm."""
    rng = np.random.default_rng(SEED)
    w0 = 0.5 * rng.standard_normal((OUT, IN))
    data = {}
    for client, n in ROWS.items():
        x = rng.standard_normal((n, IN))
        data[client] = (x, rng.standard_normal((n, CLASSES)))
    head = {H: 0.5 * rng.standard_normal((CLASSES, OUT))}
    lora = {A: 0.5 * rng.standard_normal((RANK, IN)), B: np.zeros((OUT, RANK)), **head}
    k = min(IN, OUT)
    gram = {
        G: 0.5 * rng.standard_normal((RANK, k)),  # G = 0 would be a stationary point
        L: orthonormal(rng, OUT, k),  # L^T L = I_k
        R: orthonormal(rng, IN, k).T,  # R R^T = I_k
        **head,
    }
    return w0, data, lora, gram


# --- the network, its loss and its hand-derived gradients ---------------------------


def delta_w(t):
    """s B A, or FLoRG eq. (1): s L G^T G R."""
    if G in t:
        return SCALE * t[L] @ t[G].T @ t[G] @ t[R]
    return SCALE * t[B] @ t[A]


def loss_and_grads(w0, t, x, y):
    z = np.tanh(x @ (w0 + delta_w(t)).T)  # n x out
    error = z @ t[H].T - y
    loss = 0.5 * np.sum(error**2) / len(x)
    d_pred = error / len(x)
    d_w = ((d_pred @ t[H]) * (1.0 - z**2)).T @ x  # gradient of W_eff, out x in
    grads = {H: d_pred.T @ z}
    if G in t:  # FLoRG eq. (2): G (M + M^T), M = s L^T (dF/dW) R^T
        m = SCALE * t[L].T @ d_w @ t[R].T
        grads[G] = t[G] @ (m + m.T)
    else:
        grads[A] = SCALE * t[B].T @ d_w
        grads[B] = SCALE * d_w @ t[A].T
    return loss, grads


def check_gradients(h=1e-5, tolerance=1e-8):
    """Central finite differences of every trained tensor, at points where none is 0."""
    w0, data, lora, gram = make_problem()
    lora = lora | {B: np.random.default_rng(1).standard_normal((OUT, RANK))}
    worst = 0.0
    for t in (lora, gram):
        for x, y in data.values():
            _, grads = loss_and_grads(w0, t, x, y)
            for name, grad in grads.items():
                for i in np.ndindex(grad.shape):
                    step = np.zeros(grad.shape)
                    step[i] = h
                    up, _ = loss_and_grads(w0, t | {name: t[name] + step}, x, y)
                    down, _ = loss_and_grads(w0, t | {name: t[name] - step}, x, y)
                    worst = max(worst, abs((up - down) / (2 * h) - grad[i]))
    assert worst < tolerance, worst
    return worst


# --- the server ---------------------------------------------------------------------


def average(uploads, name):
    return sum(P[c] * uploads[c][name] for c in ROWS)


def canonical_factor(uploads):
    """FLoRG eqs. (4), (6), (7): Atil (r' x k), Atil^T Atil = Q, largest rows first."""
    q = sum(P[c] * uploads[c][G].T @ uploads[c][G] for c in ROWS)
    values, vectors = np.linalg.eigh(q)  # ascending, eigenvectors in columns
    keep = values > 1e-12 * values.max()
    values, rows = values[keep][::-1], vectors[:, keep].T[::-1]
    atil = np.sqrt(values)[:, None] * rows
    assert np.allclose(atil.T @ atil, q, rtol=0, atol=1e-12)
    return atil


def procrustes(g_t, atil):
    """FLoRG Theorem 1: SVD(G_t Atil^T) = U S V^T, G_{t+1} = U V^T Atil.

    Here r' = min(k, N r) > r: the paper's constraint (8b) cannot hold, but eq. (11)
    is well defined with the reduced SVD, and S S^T = I_r.
    """
    u, sigma, vt = np.linalg.svd(g_t @ atil.T, full_matrices=False)
    s = u @ vt
    assert np.isclose(np.trace(g_t @ atil.T @ s.T), sigma.sum(), rtol=0, atol=1e-12)
    return s @ atil


def leading_rows(atil):
    """FLoRG without alignment: the r rows of Atil with the largest eigenvalues.

    The paper leaves each row's sign open. Our convention, not the paper's: a row's
    entry of largest absolute value is positive.
    """
    top = atil[:RANK]
    assert len(top) == RANK
    peak = np.argmax(np.abs(top), axis=1)
    return top * np.sign(top[np.arange(RANK), peak])[:, None]


# --- the rounds ---------------------------------------------------------------------

# name: (rounds, trained tensors by 0-based round, kept by the client, G_{t+1})
ALGORITHMS = {
    "fedit": (2, lambda t: (A, B), (), None),
    "ffa-lora": (2, lambda t: (B,), (), None),
    # Algorithm 1 trains and averages its B first, in the odd rounds counted from 1.
    "rolora": (4, lambda t: (B,) if t % 2 == 0 else (A,), (), None),
    "fedsa-lora": (2, lambda t: (A, B), (B,), None),
    "florg": (2, lambda t: (G,), (), procrustes),
    "florg-unaligned": (2, lambda t: (G,), (), lambda g_t, atil: leading_rows(atil)),
}


def run(name):
    rounds, trained_in, private, refactor = ALGORITHMS[name]
    w0, data, lora, gram = make_problem()
    init = gram if refactor else lora
    state = {n: v for n, v in init.items() if n not in private}
    local = {c: {n: init[n] for n in private} for c in ROWS}
    expected = []
    for index in range(rounds):
        trained = (*trained_in(index), H)
        uploads, losses, products = {}, {}, {}
        for c, (x, y) in data.items():
            t = state | local[c]
            losses[c], _ = loss_and_grads(w0, t, x, y)
            for _ in range(LOCAL_STEPS):
                _, grads = loss_and_grads(w0, t, x, y)
                t = t | {n: t[n] - LR * grads[n] for n in trained}
            products[c] = {"delta": delta_w(t)}
            local[c] = {n: t[n] for n in private}
            uploads[c] = {n: t[n] for n in trained if n not in private}
        if refactor:
            new_g = refactor(state[G], canonical_factor(uploads))
            state = state | {G: new_g, H: average(uploads, H)}
        else:
            state = state | {n: average(uploads, n) for n in uploads["a"]}
        delta = None if private else delta_w(state)  # private B: no global delta W
        if not private and not refactor:  # RoLoRA eqs. (1)-(4): who has interference
            gap = np.abs(delta - average(products, "delta")).max()
            assert gap > 1e-3 if name == "fedit" else gap < 1e-12, gap
        result = {"state": state, "delta_w": delta, "local": dict(local)}
        expected.append(result | {"uploads": uploads, "loss": losses})
    clients = {c: {"x": x, "y": y} for c, (x, y) in data.items()}
    golden = {"algorithm": name, "seed": SEED, "scale": SCALE, "lr": LR}
    golden |= {"local_steps": LOCAL_STEPS, "rounds": rounds, "W0": w0}
    golden |= {"clients": clients, "init": init, "expected": expected}
    # arrays to nested lists, NumPy numbers to Python's; floats print as repr
    return json.loads(json.dumps(golden, default=lambda v: v.tolist()))


# --- files --------------------------------------------------------------------------


def to_text(golden):
    """Indented JSON with every row of numbers on one line."""
    text = json.dumps(golden, indent=1, allow_nan=False)
    row = re.compile(r"\[\s+([^\[\]{}]+?)\s+\]")
    return row.sub(lambda m: "[" + " ".join(m[1].split()) + "]", text) + "\n"


def difference(a, b):
    """Largest absolute difference of two JSON values; infinite if built differently."""
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b)
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return max((difference(a[k], b[k]) for k in a), default=0.0)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return max((difference(x, y) for x, y in zip(a, b, strict=True)), default=0.0)
    return 0.0 if type(a) is type(b) and a == b else float("inf")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    print(f"gradients agree with finite differences to {check_gradients():.1e}")
    failed = False
    for name in ALGORITHMS:
        path = Path(__file__).with_name(f"{name}.json")
        golden = run(name)
        if not check:
            path.write_text(to_text(golden), encoding="utf-8", newline="\n")
            print(f"wrote {path.name}")
            continue
        gap = float("inf")
        if path.exists():
            gap = difference(golden, json.loads(path.read_text(encoding="utf-8")))
        ok = gap <= 1e-12  # False for NaN too
        failed |= not ok
        print(f"{'ok  ' if ok else 'FAIL'} {path.name}: difference {gap:.1e}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
