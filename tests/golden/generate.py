"""Golden files of fourteen federated low-rank algorithms: an independent oracle.

Written from the papers with NumPy alone, in float64; it shares no code with the
package under test. It favours the papers' literal form over speed: dense products and
numpy.linalg.svd of them, whatever a factored implementation does.

    python tests/golden/generate.py            (re)write one JSON an algorithm
    python tests/golden/generate.py --check    exit 1 if the files on disk differ

Notation (PEFT's orientation): W_eff = W0 + s B A, A is r x in (DOWN), B is out x r
(UP). The network is z = tanh(W_eff x), prediction H z; a client's loss is the mean
over its rows of 0.5 ||prediction - y||^2. A client runs LOCAL_STEPS of plain
full-batch gradient descent on all its trained tensors at once. Client weights are
p_n = n_n / sum_j n_j. (RoLoRA and FLoRG print 1/N, the equal-size case.) The head H
is trained, uploaded and averaged in every round by every algorithm; what a paper
itself says of its head, if anything, is not modelled. Where an algorithm moves the
frozen base, "base" is its total change C: W_eff = W0 + C + s B A, delta_w = C + s B A.
Where it takes an SVD, the signs, left open by the papers, are fixed by a convention of
ours: a row's (of A) entry of largest absolute value is positive.

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
  FlexLoRA   Bai et al., "Federated fine-tuning of large language models under
             heterogeneous tasks and client resources": truncated SVD of the mean
             product. The split B = U S / s, A = V^T is its code's.
  FedEx-LoRA Singhal et al., "FedEx-LoRA: exact aggregation for federated and efficient
             fine-tuning": factor-wise means, the residual goes to the base.
  FedSVD     Lee et al., "FedSVD": FFA-LoRA, and an SVD of B A after aggregation.
  FLoRA      Wang et al., "FLoRA: federated fine-tuning large language models with
             heterogeneous low-rank adaptations": stacked factors, merged, restarted.
  FeDeRA     Yan et al., "FeDeRA": the start is the top of W0's SVD; then FedIT.
  HetLoRA    Cho et al., "Heterogeneous LoRA for federated fine-tuning": weights are
             ||B_k A_k||_F; equal ranks here, no penalty, no pruning.
  LoRA-FAIR  Bian et al., "LoRA-FAIR": a correction of the mean B. Its Frobenius
             variant (not the paper's cosine), which has a closed form.
  FedLoRU    Park and Klabjan: Algorithm 1, eq. (7), restarts of its appendices B and
             D.2. Its W is in x out: its A (random start) is our A^T, its B (zero) our
             B^T; its alpha is our s.
  pFedLoRU   The same paper's appendix C.2: Algorithm 2, eqs. (80) and (81). Its L is our
             pA^T, its U our pB^T: W_eff = W0 + C + s (B A + pB pA), one rank and one s
             for both pairs. pA (random, the same for all: "personal") and pB (zero) stay
             with their client. LOCAL_STEPS on pA and pB alone come first, then as many on
             A, B and H. delta_w is a new client's, whose pB is 0: C + s B A. Its box, as
             FedLoRU's, leaves the restart open: FedLoRU's random one.
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
PA, PB = "layer.pA", "layer.pB"  # pFedLoRU: the personal pair
H = "head:out.weight"
TAU = 2  # FedLoRU, pFedLoRU: rounds from one accumulation to the next
LAMBDA = 0.01  # LoRA-FAIR: weight of the penalty


def orthonormal(rng, rows, cols):
    """A rows x cols matrix with orthonormal columns (rows >= cols)."""
    q, upper = np.linalg.qr(rng.standard_normal((rows, cols)))
    return q * np.sign(np.diag(upper))  # unique: the triangular factor's diagonal > 0


def make_problem():
    """Base weight, client data and starting tensors, the same for every algorithm.

    Last, the generator as it then stands: restarts draw their A from it, and after them
    pFedLoRU its personal pA.
    """
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
    return w0, data, lora, gram, rng


def fresh_a(rng):
    return 0.5 * rng.standard_normal((RANK, IN))  # as the first A


def fresh_draws(name, rounds, rng):
    """The random A of every restart, an input of the algorithm: {who: A} by round."""
    if name == "flora":  # every client, at the start of every round
        return [{c: fresh_a(rng) for c in ROWS} for _ in range(rounds)]
    if name in ("fedloru", "pfedloru"):  # the server, as a round that accumulates ends
        return [{"server": fresh_a(rng)} if accumulates(t) else None for t in range(rounds)]
    return None


# --- the network, its loss and its hand-derived gradients ---------------------------


def delta_w(t):
    """s B A, FLoRG eq. (1): s L G^T G R, or pFedLoRU: s (B A + pB pA)."""
    if G in t:
        return SCALE * t[L] @ t[G].T @ t[G] @ t[R]
    if PA in t:
        return SCALE * (t[B] @ t[A] + t[PB] @ t[PA])
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
    if PA in t:
        grads[PA] = SCALE * t[PB].T @ d_w
        grads[PB] = SCALE * d_w @ t[PA].T
    return loss, grads


def check_gradients(h=1e-5, tolerance=1e-8):
    """Central finite differences of every trained tensor, at points where none is 0."""
    w0, data, lora, gram, _ = make_problem()
    rng = np.random.default_rng(1)
    lora = lora | {B: rng.standard_normal((OUT, RANK))}
    moved = w0 + rng.standard_normal(w0.shape)  # a base that changed, as the rounds use it
    pair = {PA: fresh_a(rng), PB: rng.standard_normal((OUT, RANK))}
    worst = 0.0
    for w, t in ((w0, lora), (w0, gram), (moved, lora), (moved, lora | pair)):
        assert len(loss_and_grads(w, t, *data["a"])[1]) == (2 if G in t else len(t))
        for x, y in data.values():
            _, grads = loss_and_grads(w, t, x, y)
            for name, grad in grads.items():
                for i in np.ndindex(grad.shape):
                    step = np.zeros(grad.shape)
                    step[i] = h
                    up, _ = loss_and_grads(w, t | {name: t[name] + step}, x, y)
                    down, _ = loss_and_grads(w, t | {name: t[name] - step}, x, y)
                    worst = max(worst, abs((up - down) / (2 * h) - grad[i]))
    assert worst < tolerance, worst
    return worst


# --- the server ---------------------------------------------------------------------


def average(uploads, name, weights=P):
    return sum(weights[c] * uploads[c][name] for c in ROWS)


def mean_product(uploads):
    """M = sum p_k B_k A_k, dense, without s."""
    return sum(P[c] * uploads[c][B] @ uploads[c][A] for c in ROWS)


def close(a, b):
    return np.allclose(a, b, rtol=0, atol=1e-12)


def row_signs(rows):
    """What makes each row's entry of largest absolute value positive."""
    peak = np.argmax(np.abs(rows), axis=1)
    return np.sign(rows[np.arange(len(rows)), peak])[:, None]


def leading_svd(matrix):
    """U_r, S_r, V_r^T of a dense matrix, signs fixed; unique, which is asserted."""
    u, sigma, vt = np.linalg.svd(matrix)
    assert (-np.diff(sigma[: RANK + 1])).min() > 1e-3, sigma  # no ties
    u, sigma, vt = u[:, :RANK], sigma[:RANK], vt[:RANK]
    second, peak = np.sort(np.abs(vt), axis=1)[:, -2:].T
    assert (peak - second).min() > 1e-3, vt  # the sign rule is not on an edge
    signs = row_signs(vt)
    return u * signs.T, sigma, signs * vt


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
    return top * row_signs(top)


# A server step: (round, state, base, uploads, draw) to (state, base, what else to record).


def fedavg(t, state, base, uploads, draw):
    return state | {n: average(uploads, n) for n in uploads["a"]}, base, {}


def gram_step(refactor):
    def server(t, state, base, uploads, draw):
        new_g = refactor(state[G], canonical_factor(uploads))
        return state | {G: new_g, H: average(uploads, H)}, base, {}

    return server


def flexlora(t, state, base, uploads, draw):
    """D = sum p_k s B_k A_k; the best rank-r approximation of D goes on."""
    d = SCALE * mean_product(uploads)
    u, sigma, vt = leading_svd(d)
    state = {A: vt, B: u * sigma / SCALE, H: average(uploads, H)}
    dropped = np.linalg.norm(d - delta_w(state))
    tail = np.linalg.svd(d, compute_uv=False)[RANK:]
    assert close(dropped, np.sqrt(np.sum(tail**2)))  # Eckart-Young
    return state, base, {"truncation": dropped}


def fedex(t, state, base, uploads, draw):
    """W0 <- W0 + s (sum p_k B_k A_k - Bbar Abar), s once."""
    state, _, _ = fedavg(t, state, base, uploads, draw)
    residual = mean_product(uploads) - state[B] @ state[A]
    return state, base + SCALE * residual, {}


def fedsvd(t, state, base, uploads, draw):
    """The mean B, then B A = U S V^T, A <- V_r^T, B <- U_r S_r; A was every client's."""
    state, _, _ = fedavg(t, state, base, uploads, draw)
    product = state[B] @ state[A]
    u, sigma, vt = leading_svd(product)
    assert close(u * sigma @ vt, product)  # its rank is r
    return state | {A: vt, B: u * sigma}, base, {}


def flora(t, state, base, uploads, draw):
    """B = [B_1 .. B_K], A = [p_1 A_1; ..; p_K A_K], p once; s B A is merged."""
    stack_b = np.hstack([uploads[c][B] for c in ROWS])
    stack_a = np.vstack([P[c] * uploads[c][A] for c in ROWS])
    assert close(stack_b @ stack_a, mean_product(uploads))
    return {H: average(uploads, H)}, base + SCALE * stack_b @ stack_a, {}


def hetlora(t, state, base, uploads, draw):
    """Weights ||s B_k A_k||_F / sum_j ||s B_j A_j||_F, for every tensor."""
    norms = {c: np.linalg.norm(delta_w(uploads[c])) for c in ROWS}
    weights = {c: norm / sum(norms.values()) for c, norm in norms.items()}
    new = {n: average(uploads, n, weights) for n in uploads["a"]}
    return state | new, base, {"weights": weights}


def lora_fair(t, state, base, uploads, draw):
    """B' minimises ||M - B' Abar||_F^2 + lambda ||B' - Bbar||_F^2, A' = Abar."""
    mean, _, _ = fedavg(t, state, base, uploads, draw)
    a, b = mean[A], mean[B]
    right = sum(P[c] * uploads[c][B] @ (uploads[c][A] @ a.T) for c in ROWS) + LAMBDA * b
    new_b = right @ np.linalg.inv(a @ a.T + LAMBDA * np.eye(RANK))

    m, h = mean_product(uploads), 1e-3

    def objective(z):
        return np.sum((m - z @ a) ** 2) + LAMBDA * np.sum((z - b) ** 2)

    for i in np.ndindex(b.shape):  # a quadratic: central differences are exact
        step = np.zeros(b.shape)
        step[i] = h
        up, down = objective(new_b + step), objective(new_b - step)
        assert abs(up - down) / (2 * h) < 1e-11, (up - down) / (2 * h)
    assert objective(new_b) < objective(b)
    return mean | {B: new_b}, base, {}


def accumulates(t):
    return (t + 1) % TAU == 0  # "t mod tau = 0", t from 1


def fedloru(restart):
    """Algorithm 1; appendix D.2 has two restarts.

    Random: A fresh, B zero; the model does not change. Momentum: A and B are kept;
    the box, read literally, also never clears them, and W + s B A counts s B A twice.
    """

    def server(t, state, base, uploads, draw):
        state, _, _ = fedavg(t, state, base, uploads, draw)
        if not accumulates(t):
            return state, base, {}
        update = delta_w(state)
        if restart:
            state = state | {A: draw["server"], B: np.zeros((OUT, RANK))}
        jump = (base + update + delta_w(state)) - (base + update)
        assert close(jump, 0.0 if restart else update)
        return state, base + update, {}

    return server


def federa_start(w0):
    """W0 = U S V^T: A = S_r^(1/2) V_r^T / s^(1/2), B = U_r S_r^(1/2) / s^(1/2), and
    W0 - s B A is frozen. The start of the run, and the change of the base."""
    u, sigma, vt = leading_svd(w0)
    root = np.sqrt(sigma / SCALE)
    start = {A: root[:, None] * vt, B: u * root}
    base = -delta_w(start)
    assert close(w0 + base + delta_w(start), w0)
    assert close(delta_w(start), u * sigma @ vt)
    return start, base


# --- the rounds ---------------------------------------------------------------------

# name: (rounds, trained tensors by 0-based round, kept by the client, server step)
ALGORITHMS = {
    "fedit": (2, lambda t: (A, B), (), fedavg),
    "ffa-lora": (2, lambda t: (B,), (), fedavg),
    # Algorithm 1 trains and averages its B first, in the odd rounds counted from 1.
    "rolora": (4, lambda t: (B,) if t % 2 == 0 else (A,), (), fedavg),
    "fedsa-lora": (2, lambda t: (A, B), (B,), fedavg),
    "florg": (2, lambda t: (G,), (), gram_step(procrustes)),
    "florg-unaligned": (2, lambda t: (G,), (), gram_step(lambda g, atil: leading_rows(atil))),
    "flexlora": (3, lambda t: (A, B), (), flexlora),
    "fedex-lora": (3, lambda t: (A, B), (), fedex),
    "fedsvd": (3, lambda t: (B,), (), fedsvd),
    "flora": (3, lambda t: (A, B), (), flora),
    "federa": (3, lambda t: (A, B), (), fedavg),
    "hetlora": (3, lambda t: (A, B), (), hetlora),
    "lora-fair": (3, lambda t: (A, B), (), lora_fair),
    "fedloru": (4, lambda t: (A, B), (), fedloru(restart=True)),
    "fedloru-momentum": (4, lambda t: (A, B), (), fedloru(restart=False)),
    "pfedloru": (4, lambda t: (A, B), (PA, PB), fedloru(restart=True)),
}
MOVES_BASE = {"fedex-lora", "flora", "federa", "fedloru", "fedloru-momentum", "pfedloru"}
EXACT = {"ffa-lora", "rolora", "fedex-lora", "fedsvd", "flora"}
SETTINGS = {
    "lora-fair": {"lambda": LAMBDA},
    "fedloru": {"tau": TAU},
    "fedloru-momentum": {"tau": TAU},
    "pfedloru": {"tau": TAU},
}


def check_mean(name, delta, mean, extra):
    """RoLoRA eqs. (1)-(4): who has interference. The mean is of total changes."""
    gap = np.abs(delta - mean).max()
    # pFedLoRU's personal pairs take up what sets the clients apart: 4e-4 in its last round
    least = 1e-4 if name == "pfedloru" else 1e-3
    assert gap < 1e-12 if name in EXACT else gap > least, (name, gap)
    if name == "flexlora":
        assert close(np.linalg.norm(delta - mean), extra["truncation"])


def run(name):
    rounds, trained_in, private, server = ALGORITHMS[name]
    w0, data, lora, gram, rng = make_problem()
    draws = fresh_draws(name, rounds, rng)
    init = gram if name.startswith("florg") else lora
    pair = {PA: fresh_a(rng), PB: np.zeros((OUT, RANK))} if PA in private else {}
    state = {n: v for n, v in init.items() if n not in private}
    local = {c: {n: (init | pair)[n] for n in private} for c in ROWS}
    base, start = np.zeros(w0.shape), {}
    if name == "federa":
        factors, base = federa_start(w0)
        state = state | factors
        start = {"start": {"state": state, "base": base}}
    expected = []
    for index in range(rounds):
        trained = (*trained_in(index), H)
        draw = draws[index] if draws else None
        w = w0 + base
        uploads, losses, products = {}, {}, {}
        for c, (x, y) in data.items():
            t = state | local[c]
            if name == "flora":  # whatever the round before left
                t = t | {A: draw[c], B: np.zeros((OUT, RANK))}
            losses[c], _ = loss_and_grads(w, t, x, y)
            for names in (tuple(pair), trained) if pair else (trained,):
                for _ in range(LOCAL_STEPS):
                    _, grads = loss_and_grads(w, t, x, y)
                    t = t | {n: t[n] - LR * grads[n] for n in names}
            shared = {n: v for n, v in t.items() if n not in pair}
            products[c] = {"delta": base + delta_w(shared)}
            local[c] = {n: t[n] for n in private}
            uploads[c] = {n: t[n] for n in trained if n not in private}
        state, base, extra = server(index, state, base, uploads, draw)
        # private B: no global delta W; FLoRA: no factors, all is in the base
        delta = None if B in private else base + (0.0 if name == "flora" else delta_w(state))
        if B not in private and G not in state:
            check_mean(name, delta, average(products, "delta"), extra)
        if name in MOVES_BASE:
            extra = extra | {"base": base}
        result = {"state": state, "delta_w": delta, "local": dict(local)}
        expected.append(result | {"uploads": uploads, "loss": losses} | extra)
    clients = {c: {"x": x, "y": y} for c, (x, y) in data.items()}
    golden = {"algorithm": name, "seed": SEED, "scale": SCALE, "lr": LR}
    golden |= {"local_steps": LOCAL_STEPS, "rounds": rounds, "W0": w0}
    golden |= SETTINGS.get(name, {}) | ({"draws": draws} if draws else {})
    golden |= {"personal": pair[PA]} if pair else {}
    golden |= {"clients": clients, "init": init} | start | {"expected": expected}
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
