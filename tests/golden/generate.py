"""Golden files of federated low-rank algorithms: an independent oracle.

Written from the papers with NumPy alone, in float64; it shares no code with the
package under test. It favours the papers' literal form over speed: dense products and
numpy.linalg.svd of them, whatever a factored implementation does.

    python tests/golden/generate.py            (re)write one JSON per algorithm
    python tests/golden/generate.py --check    exit 1 if the files on disk differ

Notation (PEFT's orientation): W_eff = W0 + s B A, A is r x in (DOWN), B is out x r
(UP). The network is z = tanh(W_eff x), prediction H z; a client's loss is the mean
over its rows of 0.5 ||prediction - y||^2. A client runs LOCAL_STEPS of plain
full-batch gradient descent on all its trained tensors at once. Client weights are
p_n = n_n / sum_j n_j. (RoLoRA and FLoRG print 1/N, the equal-size case.) The head H
is trained, uploaded and averaged in every round by every algorithm; what a paper
itself says of its head, if anything, is not modelled. Where an algorithm moves the
frozen base, "base" is its total change C: W_eff = W0 + C + s B A, delta_w = C + s B A.
Where it takes an SVD, the papers leave the signs open. Our convention: in each row of A
the entry of largest absolute value is positive.

References
  FedIT      Zhang et al., "Towards building the federated GPT"; factor-wise FedAvg,
             right-hand side of eq. (2) in the RoLoRA paper.
  FFA-LoRA   Sun et al., "Improving LoRA in privacy-preserving federated learning";
             A frozen at its random start, B averaged.
  Fed-SB     Singhal et al., "Fed-SB": W = W0 + s B R A with B and A frozen at the singular
             vectors of a start, R (our C) trained and averaged; its B and A are our L and
             R. The start is an adapter's product B A, not a gradient: L C R = B A.
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
             "flexlora-client-scale", and FLoRA so: clients of rank 1 at s_k = alpha / r_k,
             as their codes have it; their B is sent times s_k / s.
  FedEx-LoRA Singhal et al., "FedEx-LoRA: exact aggregation for federated and efficient
             fine-tuning": factor-wise means, the residual goes to the base.
  FedSVD     Lee et al., "FedSVD": FFA-LoRA, and an SVD of B A after aggregation.
  FLoRA      Wang et al., "FLoRA: federated fine-tuning large language models with
             heterogeneous low-rank adaptations": stacked factors, merged, restarted.
  FeDeRA     Yan et al., "FeDeRA": the start is the top of W0's SVD; then FedIT.
  HetLoRA    Cho et al., "Heterogeneous LoRA for federated fine-tuning": weights are
             ||B_k A_k||_F; equal ranks here, no penalty, no pruning.
  LoRA-FAIR  Bian et al., "LoRA-FAIR", eq. (8): a correction of the mean B that minimises
             lambda ||dB|| - cos(M, (Bbar + dB) Abar). The paper takes SGD steps on it, of
             which it says neither number nor rate; here descent goes on to the minimum.
             "lora-fair-frobenius" has squared Frobenius norms for both terms instead.
  FedLoRU    Park and Klabjan: Algorithm 1, eq. (7), restarts of its appendices B and
             D.2. Its W is in x out: its A (random start) is our A^T, its B (zero) our
             B^T; its alpha is our s.
  pFedLoRU   The same paper's appendix C.2: Algorithm 2, eqs. (80) and (81). Its L is our
             pA^T, its U our pB^T: W_eff = W0 + C + s (B A + pB pA), one rank and one s
             for both pairs. pA (random, the same for all: "personal") and pB (zero) stay
             with their client. LOCAL_STEPS on pA and pB alone come first, then as many on
             A, B and H. delta_w is a new client's, whose pB is 0: C + s B A. Its box, as
             FedLoRU's, leaves the restart open: FedLoRU's random one.
  mFedLoRU   The same paper's appendix C.3: Algorithm 3, eqs. (82) and (83). Its A_d A_u is
             our (Au Ad)^T, its B_d B_u our (Bu Bd)^T, transposed as A and B are: a client's
             W_eff = W0 + C + s (B + c Bu Bd)(A + c Au Ad), A and B fixed, one c for both.
             Ad and Bd are drawn anew by every client in every round, Au and Bu start at
             zero. The restart is FedLoRU's random one.
  pFedLoRA   The same paper's appendix C.4: Algorithm 4, eqs. (84) to (86). W is shared and
             trained whole, here as its change in units of s: W_eff = W0 + s (D + pB pA),
             D zero at first. pA and pB as in pFedLoRU. Variant 1: LOCAL_STEPS on pA and pB,
             then as many on D and H; variant 2 ("together"): LOCAL_STEPS on all. delta_w is
             a new client's: s D.
  LoRA-A2    Koo et al., "Towards robust and efficient federated low-rank adaptation with
             heterogeneous clients": B and A alternate as in RoLoRA, and a client trains and
             uploads only the slots i (column of B, row of A) that score highest after one
             epoch from the broadcast, here one step. That probe is then undone. In B's
             rounds the rate is 5 LR (appendix B). H takes part in both.
             "pfedlora-weight", and SLoRA so: D is a change of W itself, W_eff = W0 + D + ...
  SLoRA      Babakniya et al., "SLoRA: federated parameter efficient fine-tuning of language
             models": rounds of a change s D, sparse by one mask for all, then FedIT from
             the truncated SVD of D; W0 stays. The split B = U S, A = V^T (s is outside D)
             is ours after FlexLoRA's.
  FedHM      Yao et al., "FedHM: efficient federated learning for heterogeneous models via
             low-rank factorization": FlexLoRA with its split B = U S^(1/2),
             A = S^(1/2) V^T, here of the change of W alone, W0 being frozen.
  FedRot-LoRA Zhang et al., "FedRot-LoRA: mitigating rotational misalignment in federated
             LoRA": FedIT of factors turned to the broadcast: B R, R^T A, R of determinant 1.
             Its code turns to A in odd rounds and to B in even ones, counted from 0, and not
             at all in the first. The rate is so high that in two rounds the nearest
             orthogonal matrix of a client would be a reflection.
  raFLoRA    Wu et al., "Preventing rank collapse in federated low-rank adaptation with
             client heterogeneity": FlexLoRA whose mean of a slot is over the clients that
             have it; a slot that no client of the round has stays as it is at the server.
             Clients of rank 1 at the run's scale here, and an adapter to start from.
  Fed-PLoRA  Zhang et al., "Heterogeneous federated fine-tuning with parallel one-rank
             adaptation": a client adds the products B_(j) A_(j) of the modules that it did not draw
             to W, trains and sends its own, and each module is averaged over those that drew it.
  RAVAN      Raje et al., "Ravan: multi-head low-rank adaptation for federated fine-tuning":
             W0 + s sum_i s_i B_i H_i A_i, B_i and A_i frozen. A client trains H_i from the
             server's and s_i from 1, and sends s_i H_i, whose mean is the next H_i.
  FSLoRA     Fang et al., "Federated sketching LoRA": a client's model is W0 + s B S A, S = r / m
             on m drawn slots and 0 elsewhere. It moves those columns of B and rows of A, and the
             server's step is the mean of all clients' changes, 0 where a client has none.
  FLoRIST    Ramesh and Dass, "FLoRIST: singular value thresholding for efficient and accurate
             federated fine-tuning", Algorithm 1: FLoRA, of whose stack the server keeps the
             smallest rank p with a share tau of the sum of squared singular values.
  FedMomentum Yan et al., "FedMomentum: preserving LoRA training momentum in federated
             fine-tuning": FedHM, and what its truncation drops goes to the base.
"""

import json
import sys

import numpy as np
from files import HERE, write_or_compare

SEED = 20260
OUT, IN, RANK, CLASSES = 5, 4, 2, 3
SCALE, LR, LOCAL_STEPS = 1.75, 0.1, 3
ROWS = {"a": 6, "b": 3}
P = {c: n / sum(ROWS.values()) for c, n in ROWS.items()}
A, B, C, G, L, R = (f"layer.{x}" for x in "ABCGLR")
HEAD_SCALES = "layer.s"  # RAVAN: s_i; its H_i are the blocks of rows of C
PA, PB = "layer.pA", "layer.pB"  # pFedLoRU, pFedLoRA: the personal pair
AD, AU, BD, BU = (f"layer.{x}" for x in ("Ad", "Au", "Bd", "Bu"))  # mFedLoRU: nested
D, S = "layer.D", "layer.S"  # pFedLoRA: a whole change; SLoRA: a sparse one's values
SLOTS = "layer.I"  # LoRA-A2, FSLoRA: which slots an upload holds, ascending
H = "head:out.weight"
TAU = 2  # FedLoRU, pFedLoRU, mFedLoRU: rounds from one accumulation to the next
LAMBDA = 0.01  # LoRA-FAIR: weight of the penalty, both variants
CLIENT_RANK = 1  # LoRA-A2, FSLoRA, mFedLoRU: the rank of every client
BALANCE = np.array([1.0, 1.13])  # LoRA-A2: multiplies the rows of the first A
RATIO = 5.0  # LoRA-A2: the learning rate of B over that of A
INNER = 0.5  # mFedLoRU: its alpha_A and alpha_B
STRENGTH = 0.5  # FedRot-LoRA: its lambda
HEADS = 2  # RAVAN
ENERGY = 0.9  # FLoRIST: its tau
FRESH = ("flora", "florist")  # begin the names of methods whose clients draw new factors
# FSLoRA, Fed-PLoRA: the slot of each client by round, an input: what the run's streams draw.
SKETCHES = ({"a": 1, "b": 1}, {"a": 1, "b": 0}, {"a": 1, "b": 0}, {"a": 0, "b": 1})
RATES = {"fedrot-lora": 0.55, "fedmomentum": 0.3}  # where it is not LR
ADAPTED = {"fed-sb", "raflora", "fslora", "fed-plora"}  # start from an adapter whose B is not 0
SPARSE_ROUNDS = 2  # SLoRA: rounds of its first stage
# How much larger a client's own scale, alpha / r_k, is than the run's, alpha / r.
OWN = RANK / CLIENT_RANK
# What stands for SCALE in a model: "factors" before B A, "whole" before D or a sparse change.
AT_RUNS_SCALE = {"factors": SCALE, "whole": SCALE}
MODELS = {
    "flexlora-client-scale": AT_RUNS_SCALE | {"factors": OWN * SCALE},
    "flora-client-scale": AT_RUNS_SCALE | {"factors": OWN * SCALE},
    "pfedlora-weight": AT_RUNS_SCALE | {"whole": 1.0},  # W_eff = W0 + D + s pB pA
    "slora-weight": AT_RUNS_SCALE | {"whole": 1.0},  # W_eff = W0 + D, of its first stage
}
# SLoRA: the trained positions of W, flat indices of its rows one after the other.
# The seed is one for which D has rank 3 and does not fall apart into blocks.
MASK = np.sort(np.random.default_rng(SEED + 19).choice(OUT * IN, 5, replace=False))


def orthonormal(rng, rows, cols):
    """A rows x cols matrix with orthonormal columns (rows >= cols)."""
    q, upper = np.linalg.qr(rng.standard_normal((rows, cols)))
    return q * np.sign(np.diag(upper))  # unique: the triangular factor's diagonal > 0


def make_problem():
    """Base weight, client data and starting tensors, the same for every algorithm.

    The last value is the generator after these draws: restarts draw their A from it,
    mFedLoRU its Ad and Bd, and after them pFedLoRU and pFedLoRA their personal pA.
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


def fresh_nested(t, rng):
    """mFedLoRU: a.Ad, a.Bd, b.Ad, b.Bd as a round starts, then the server's as FedLoRU's."""
    widths = [(c, n, k) for c in ROWS for n, k in (("Ad", IN), ("Bd", RANK))]
    drawn = {f"{c}.{n}": rng.standard_normal((CLIENT_RANK, k)) for c, n, k in widths}
    return drawn | ({"server": fresh_a(rng)} if accumulates(t) else {})


def rank_of(name):
    return CLIENT_RANK if name in RANKED else RANK


def fresh_draws(name, rounds, rng):
    """The random factors of every restart, an input of the algorithm: {drawer: A} by round."""
    if name.startswith(FRESH):  # every client, at the start of every round
        return [{c: fresh_a(rng)[: rank_of(name)] for c in ROWS} for _ in range(rounds)]
    if name in ("fedloru", "pfedloru"):  # the server, as a round that accumulates ends
        return [{"server": fresh_a(rng)} if accumulates(t) else None for t in range(rounds)]
    if name == "mfedloru":
        return [fresh_nested(t, rng) for t in range(rounds)]
    return None


# --- the network, its loss and its hand-derived gradients ---------------------------


def sparse(values):
    """SLoRA's D: zero but for the mask."""
    change = np.zeros(OUT * IN)
    change[MASK] = values
    return change.reshape(OUT, IN)


def nested(t):
    """mFedLoRU eq. (83): A + c Au Ad and B + c Bu Bd, in the parentheses of eq. (82)."""
    return {A: t[A] + INNER * t[AU] @ t[AD], B: t[B] + INNER * t[BU] @ t[BD]}


def heads(t):
    """RAVAN: the rows of C, s_i, B_i, H_i and A_i of each head. Fed-SB has one, and s = 1."""
    for i in range(len(t[C]) // RANK):
        rows = slice(i * RANK, (i + 1) * RANK)
        yield rows, t.get(HEAD_SCALES, np.ones(HEADS))[i], t[L][:, rows], t[C][rows], t[R][rows]


def delta_w(t, model=AT_RUNS_SCALE):
    """s B A, FLoRG eq. (1): s L G^T G R, pFedLoRU: s (B A + pB pA), mFedLoRU eq. (82),
    pFedLoRA: s (D + pB pA), or SLoRA's first stage: s D."""
    if C in t:
        return SCALE * sum(s_i * b_i @ h_i @ a_i for _, s_i, b_i, h_i, a_i in heads(t))
    if G in t:
        return SCALE * t[L] @ t[G].T @ t[G] @ t[R]
    if S in t:
        return model["whole"] * sparse(t[S])
    if D in t:
        return model["whole"] * t[D] + SCALE * (t[PB] @ t[PA] if PA in t else 0.0)
    if AD in t:
        return delta_w(nested(t))
    if PA in t:
        return SCALE * (t[B] @ t[A] + t[PB] @ t[PA])
    return model["factors"] * t[B] @ t[A]


def loss_and_grads(w0, t, x, y, model=AT_RUNS_SCALE):
    z = np.tanh(x @ (w0 + delta_w(t, model)).T)  # n x out
    error = z @ t[H].T - y
    loss = 0.5 * np.sum(error**2) / len(x)
    d_pred = error / len(x)
    d_w = ((d_pred @ t[H]) * (1.0 - z**2)).T @ x  # gradient of W_eff, out x in
    grads = {H: d_pred.T @ z}
    if G in t:  # FLoRG eq. (2): G (M + M^T), M = s L^T (dF/dW) R^T
        m = SCALE * t[L].T @ d_w @ t[R].T
        grads[G] = t[G] @ (m + m.T)
    elif C in t:
        by_head = [(s_i, h_i, SCALE * b_i.T @ d_w @ a_i.T) for _, s_i, b_i, h_i, a_i in heads(t)]
        grads[C] = np.vstack([s_i * g for s_i, _, g in by_head])
        if HEAD_SCALES in t:
            grads[HEAD_SCALES] = np.array([np.sum(h_i * g) for _, h_i, g in by_head])
    elif S in t:
        grads[S] = model["whole"] * d_w.ravel()[MASK]
    elif D in t:
        grads[D] = model["whole"] * d_w
    else:
        seen = nested(t) if AD in t else t
        grads[A] = model["factors"] * seen[B].T @ d_w
        grads[B] = model["factors"] * d_w @ seen[A].T
    if AD in t:  # through A + c Au Ad and B + c Bu Bd
        grads[AD], grads[AU] = INNER * t[AU].T @ grads[A], INNER * grads[A] @ t[AD].T
        grads[BD], grads[BU] = INNER * t[BU].T @ grads[B], INNER * grads[B] @ t[BD].T
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
    shapes = {AD: (CLIENT_RANK, IN), AU: (RANK, CLIENT_RANK)}
    shapes |= {BD: (CLIENT_RANK, RANK), BU: (OUT, CLIENT_RANK)}
    inner = {n: rng.standard_normal(shape) for n, shape in shapes.items()}
    whole = {D: rng.standard_normal((OUT, IN)), H: lora[H]}
    values = {S: rng.standard_normal(len(MASK)), H: lora[H]}
    points = [(w0, lora), (w0, gram), (moved, lora), (moved, lora | pair)]
    points += [(moved, fed_sb_start(lora))]
    cores = {C: rng.standard_normal((HEADS * RANK, RANK)), HEAD_SCALES: np.array([1.5, -0.5])}
    points += [(moved, ravan_start(lora) | cores)]
    points += [(moved, lora | inner), (w0, whole), (w0, whole | pair), (w0, values)]
    worst = 0.0
    for w, t in points:
        assert len(loss_and_grads(w, t, *data["a"])[1]) == len(t) - 2 * (L in t)
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
    """Signs that make each row's entry of largest absolute value positive."""
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


# A server step: (round, state, base, uploads, draw) to (state, base, further records).


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


def florist(t, state, base, uploads, draw):
    """Algorithm 1: SVDs of both stacks, then of P = S_B V_B^T U_A S_A = U_P S_P V_P^T; p is the
    least with sum_{i <= p} S_P^2 >= tau sum S_P^2. s (U_B U_P S_P)[:p] (V_P^T V_A^T)[:p] is
    merged."""
    u_b, s_b, vt_b = np.linalg.svd(np.hstack([uploads[c][B] for c in ROWS]), full_matrices=False)
    u_a, s_a, vt_a = np.linalg.svd(np.vstack([P[c] * uploads[c][A] for c in ROWS]), full_matrices=False)
    u_p, s_p, vt_p = np.linalg.svd(np.diag(s_b) @ vt_b @ u_a @ np.diag(s_a))
    share = np.cumsum(s_p**2) / np.sum(s_p**2)
    p = 1 + np.flatnonzero(share >= ENERGY)[0]
    assert np.abs(share - ENERGY).min() > 1e-3, share  # the choice is not on an edge
    b_g, a_g = (u_b @ u_p)[:, :p] * s_p[:p], (vt_p @ vt_a)[:p]
    dropped = SCALE * np.linalg.norm(s_p[p:])
    extra = {"truncation": dropped, "kept_rank": p}
    return {H: average(uploads, H)}, base + SCALE * b_g @ a_g, extra


def hetlora(t, state, base, uploads, draw):
    """Weights ||s B_k A_k||_F / sum_j ||s B_j A_j||_F, for every tensor."""
    norms = {c: np.linalg.norm(delta_w(uploads[c])) for c in ROWS}
    weights = {c: norm / sum(norms.values()) for c, norm in norms.items()}
    new = {n: average(uploads, n, weights) for n in uploads["a"]}
    return state | new, base, {"weights": weights}


def minimum(objective, gradient, x):
    """A local minimum: damped Newton steps, the second derivatives by central differences."""
    h, shape = 1e-6, x.shape
    for _ in range(200):
        g = gradient(x).ravel()
        if np.linalg.norm(g) < 1e-13:
            return x
        units = h * np.eye(x.size)
        ends = [[gradient(x + sign * e.reshape(shape)).ravel() for e in units] for sign in (1, -1)]
        values, vectors = np.linalg.eigh((np.array(ends[0]) - np.array(ends[1])) / (2 * h))
        step = vectors @ ((vectors.T @ g) / np.abs(values).clip(1e-8))  # downhill where it bends down
        while objective(x - step.reshape(shape)) > objective(x) and np.abs(step).max() > 1e-15:
            step = step / 2
        x = x - step.reshape(shape)
    assert np.linalg.norm(gradient(x)) < 1e-11, np.linalg.norm(gradient(x))
    return x


def lora_fair(t, state, base, uploads, draw):
    """B' minimises lambda ||B' - Bbar|| - cos(M, B' Abar), A' = Abar."""
    mean, _, _ = fedavg(t, state, base, uploads, draw)
    a, b, m = mean[A], mean[B], mean_product(uploads)

    def cosine(z):
        return np.sum(m * (z @ a)) / np.linalg.norm(m) / np.linalg.norm(z @ a)

    def slope(z):  # of the cosine
        size = np.linalg.norm(z @ a)
        return (m / np.linalg.norm(m) - cosine(z) * z @ a / size) @ a.T / size

    def objective(z):
        return LAMBDA * np.linalg.norm(z - b) - cosine(z)

    def gradient(z):
        return LAMBDA * (z - b) / np.linalg.norm(z - b) - slope(z)

    assert np.linalg.norm(slope(b)) > LAMBDA  # or B' = Bbar
    new_b = minimum(objective, gradient, b + 1e-3 * slope(b))
    assert objective(new_b) < objective(b)
    assert np.linalg.norm(new_b - b) > 1e-3
    return mean | {B: new_b}, base, {"cosine": cosine(new_b)}


def lora_fair_frobenius(t, state, base, uploads, draw):
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


def fedhm(t, state, base, uploads, draw):
    """M = sum p_k B_k A_k = U S V^T; the best rank-r approximation of M goes on, as
    B = U_r S_r^(1/2), A = S_r^(1/2) V_r^T."""
    m = mean_product(uploads)
    u, sigma, vt = leading_svd(m)
    root = np.sqrt(sigma)
    state = {A: root[:, None] * vt, B: u * root, H: average(uploads, H)}
    assert close(state[B].T @ state[B], state[A] @ state[A].T)  # balanced
    return state, base, {"truncation": np.linalg.norm(SCALE * m - delta_w(state))}


def nearest_rotation(m):
    """The R of determinant 1 that maximises tr(R^T M): M = U S V^T, R = U diag(1, .., 1,
    det(U V^T)) V^T. It is unique, which is asserted."""
    u, sigma, vt = np.linalg.svd(m)
    flip = np.eye(len(m))
    flip[-1, -1] = np.linalg.det(u @ vt)
    assert sigma[-2] + flip[-1, -1] * sigma[-1] > 1e-3 * sigma[0], sigma
    r = u @ flip @ vt
    assert close(r.T @ r, np.eye(len(m)))
    assert close(np.linalg.det(r), 1.0)
    assert close(r.T @ m, (r.T @ m).T)
    return r


def turned(t, trained, broadcast):
    """FedRot-LoRA: B R and R^T A; R* takes R^T A closest to the broadcast A (odd rounds) or
    B R to the broadcast B, R is the rotation nearest to (1 - lambda) I + lambda R*."""
    if t == 0:
        return trained
    a, b = trained[A], trained[B]
    best = nearest_rotation(a @ broadcast[A].T if t % 2 == 1 else b.T @ broadcast[B])
    r = nearest_rotation((1 - STRENGTH) * np.eye(RANK) + STRENGTH * best)
    assert np.abs(r - np.eye(RANK)).max() > 1e-3
    assert close((b @ r) @ (r.T @ a), b @ a)
    return trained | {A: r.T @ a, B: b @ r}


def raflora(t, state, base, uploads, draw):
    """D: the mean of the products over slots that the clients have, plus the server's own of
    the others; D = U S V^T, B = U_r S_r, A = V_r^T."""
    kept = state[B][:, CLIENT_RANK:] @ state[A][CLIENT_RANK:]
    u, sigma, vt = leading_svd(mean_product(uploads) + kept)
    return {A: vt, B: u * sigma, H: average(uploads, H)}, base, {}


def fedmomentum(t, state, base, uploads, draw):
    """FedHM, and W0 <- W0 + s (M - B A) in every round (tau = 1)."""
    state, base, _ = fedhm(t, state, base, uploads, draw)
    rest = mean_product(uploads) - state[B] @ state[A]
    assert np.linalg.norm(rest) > 1e-3
    return state, base + SCALE * rest, {}


def slora(whole):
    """The mean of S. After its last round, the change of W over s is U S V^T: B <- U_r S_r,
    A <- V_r^T. Then FedIT."""

    def server(t, state, base, uploads, draw):
        state, _, _ = fedavg(t, state, base, uploads, draw)
        if t != SPARSE_ROUNDS - 1:
            return state, base, {}
        change = whole * sparse(state[S])
        u, sigma, vt = leading_svd(change / SCALE)
        state = {A: vt, B: u * sigma, H: state[H]}
        return state, base, {"truncation": np.linalg.norm(change - delta_w(state))}

    return server


def slot_index(name, slots):
    """The index of slots in a factor: columns of B, rows of A."""
    return np.s_[:, slots] if name == B else slots


def fslora(t, state, base, uploads, draw):
    """B <- B + sum p_k (B_k - B) over the drawn columns, and so A over the drawn rows."""
    new = {A: state[A].copy(), B: state[B].copy(), H: average(uploads, H)}
    for c, sent in uploads.items():
        for name in (A, B):
            where = slot_index(name, sent[SLOTS])
            new[name][where] += P[c] * (sent[name] - state[name][where])
    return new, base, {}


def fed_plora(t, state, base, uploads, draw):
    """B_(j) <- sum q_kj B_k,(j), A_(j) likewise, q_kj = p_k over the sum of the p of all that drew j; a
    module that nobody drew stays."""
    new = {A: state[A].copy(), B: state[B].copy(), H: average(uploads, H)}
    for j in range(RANK):
        sent = [(P[c], u) for c, u in uploads.items() if u[SLOTS][0] == j]
        if sent:
            mass = sum(p for p, _ in sent)
            new[A][j] = sum(p / mass * u[A][0] for p, u in sent)
            new[B][:, j] = sum(p / mass * u[B][:, 0] for p, u in sent)
    return new, base, {}


def lora_a2(t, state, base, uploads, draw):
    """The mean of the stored factor with each client's slots put into it."""
    active = B if B in uploads["a"] else A
    filled = {}
    for c, sent in uploads.items():
        factor = state[active].copy()
        factor[slot_index(active, sent[SLOTS])] = sent[active]
        filled[c] = {active: factor, H: sent[H]}
    return fedavg(t, state, base, filled, draw)


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


def mfedloru(t, state, base, uploads, draw):
    """Algorithm 3: eq. (83) for every client, then Algorithm 1."""
    recovered = {c: nested(state | sent) | {H: sent[H]} for c, sent in uploads.items()}
    return fedloru(restart=True)(t, state, base, recovered, draw)


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


def fed_sb_start(lora):
    """B A = U S V^T: L = U_r, C = S_r, R = V_r^T."""
    u, sigma, vt = leading_svd(lora[B] @ lora[A])
    start = {L: u, C: np.diag(sigma), R: vt, H: lora[H]}
    assert close(delta_w(start), delta_w(lora))
    return start


def ravan_start(lora):
    """Gram-Schmidt over all heads, so that B_i^T B_j = 0 and A_i A_j^T = 0; H_i = 0."""
    rng, width = np.random.default_rng(SEED + 37), HEADS * RANK
    bases = {L: orthonormal(rng, OUT, width), R: orthonormal(rng, IN, width).T}
    return bases | {C: np.zeros((width, RANK)), H: lora[H]}


def folded(t):
    """What a client of RAVAN sends: s_i H_i."""
    sent = np.vstack([s_i * h_i for _, s_i, _, h_i, _ in heads(t)])
    assert np.abs(sent - t[C]).max() > 1e-3  # the s_i have moved
    out = {n: v for n, v in t.items() if n != HEAD_SCALES} | {C: sent}
    assert close(delta_w(out), delta_w(t))
    return out


# --- the rounds ---------------------------------------------------------------------

# name: (rounds, trained tensors by 0-based round, kept by the client, server step)
ALGORITHMS = {
    "fedit": (2, lambda t: (A, B), (), fedavg),
    "ffa-lora": (2, lambda t: (B,), (), fedavg),
    "fed-sb": (3, lambda t: (C,), (), fedavg),
    # Algorithm 1 trains and averages its B first, in the odd rounds counted from 1.
    "ravan": (3, lambda t: (C, HEAD_SCALES), (), fedavg),
    "rolora": (4, lambda t: (B,) if t % 2 == 0 else (A,), (), fedavg),
    "fedsa-lora": (2, lambda t: (A, B), (B,), fedavg),
    "florg": (2, lambda t: (G,), (), gram_step(procrustes)),
    "florg-unaligned": (2, lambda t: (G,), (), gram_step(lambda g, atil: leading_rows(atil))),
    "flexlora": (3, lambda t: (A, B), (), flexlora),
    "flexlora-client-scale": (3, lambda t: (A, B), (), flexlora),
    "fedex-lora": (3, lambda t: (A, B), (), fedex),
    "fedsvd": (3, lambda t: (B,), (), fedsvd),
    "flora": (3, lambda t: (A, B), (), flora),
    "flora-client-scale": (3, lambda t: (A, B), (), flora),
    "florist": (3, lambda t: (A, B), (), florist),
    "federa": (3, lambda t: (A, B), (), fedavg),
    "hetlora": (3, lambda t: (A, B), (), hetlora),
    "lora-fair": (3, lambda t: (A, B), (), lora_fair),
    "lora-fair-frobenius": (3, lambda t: (A, B), (), lora_fair_frobenius),
    "fedloru": (4, lambda t: (A, B), (), fedloru(restart=True)),
    "fedloru-momentum": (4, lambda t: (A, B), (), fedloru(restart=False)),
    "pfedloru": (4, lambda t: (A, B), (PA, PB), fedloru(restart=True)),
    "lora-a2": (4, lambda t: (B,) if t % 2 == 0 else (A,), (), lora_a2),
    "slora": (4, lambda t: (S,) if t < SPARSE_ROUNDS else (A, B), (), slora(SCALE)),
    "slora-weight": (4, lambda t: (S,) if t < SPARSE_ROUNDS else (A, B), (), slora(1.0)),
    "mfedloru": (4, lambda t: (AD, AU, BD, BU), (), mfedloru),
    "pfedlora": (3, lambda t: (D,), (PA, PB), fedavg),
    "pfedlora-together": (3, lambda t: (D,), (PA, PB), fedavg),
    "pfedlora-weight": (3, lambda t: (D,), (PA, PB), fedavg),
    "fedhm": (3, lambda t: (A, B), (), fedhm),
    "fedrot-lora": (4, lambda t: (A, B), (), fedavg),
    "raflora": (3, lambda t: (A, B), (), raflora),
    "fslora": (4, lambda t: (A, B), (), fslora),
    "fed-plora": (4, lambda t: (A, B), (), fed_plora),
    "fedmomentum": (3, lambda t: (A, B), (), fedmomentum),
}
MOVES_BASE = {"fedex-lora", "flora", "federa", "fedloru", "fedloru-momentum", "pfedloru"}
MOVES_BASE |= {"mfedloru", "flora-client-scale", "florist", "fedmomentum"}
EXACT = {"ravan", "ffa-lora", "fed-sb", "rolora", "fedex-lora", "fedsvd", "flora", "lora-a2"}
EXACT |= {"pfedlora", "pfedlora-together", "pfedlora-weight", "flora-client-scale"}
EXACT |= {"flexlora-client-scale"}  # two clients of rank 1: nothing is truncated
EXACT |= {"fedmomentum"}  # what is truncated goes to the base
SETTINGS = {
    "lora-fair": {"lambda": LAMBDA},
    "lora-fair-frobenius": {"lambda": LAMBDA},
    "fedloru": {"tau": TAU},
    "fedloru-momentum": {"tau": TAU},
    "pfedloru": {"tau": TAU},
    "slora": {"sparse_rounds": SPARSE_ROUNDS, "mask": MASK},
    "slora-weight": {"sparse_rounds": SPARSE_ROUNDS, "mask": MASK},
    "mfedloru": {"tau": TAU, "inner_multiplier": INNER},
    "fedrot-lora": {"strength": STRENGTH},
}
RANKED = {
    "lora-a2",
    "mfedloru",
    "flexlora-client-scale",
    "flora-client-scale",
    "raflora",
    "fslora",
    "fed-plora",
}  # whose clients have a rank of their own


def check_mean(name, state, delta, mean, extra):
    """RoLoRA eqs. (1)-(4): which methods interfere. The mean is of total changes."""
    gap = np.abs(delta - mean).max()
    # pFedLoRU's personal pairs take up most client differences: 4e-4 in its last round.
    # mFedLoRU's A hardly moves while B is near zero: 4e-5 after the first restart
    least = {"pfedloru": 1e-4, "mfedloru": 1e-5}.get(name, 1e-3)
    exact = name in EXACT or S in state  # the mean of S is exact
    assert gap < 1e-12 if exact else gap > least, (name, gap)
    if "truncation" in extra:
        assert close(np.linalg.norm(delta - mean), extra["truncation"])


def local_start(name, client, draw, state):
    """Tensors that a client resets as a round starts."""
    if name.startswith(FRESH):
        return {A: draw[client], B: np.zeros((OUT, rank_of(name)))}
    if name == "flexlora-client-scale":  # B = U_r S_r / s_k, A = V_r^T, r = r_k
        return {A: state[A][:CLIENT_RANK], B: state[B][:, :CLIENT_RANK] / OWN}
    if name == "ravan":
        return {HEAD_SCALES: np.ones(HEADS)}
    if name == "raflora":
        return {A: state[A][:CLIENT_RANK], B: state[B][:, :CLIENT_RANK]}
    if name == "mfedloru":  # the nested products are zero
        down = {AD: draw[f"{client}.Ad"], BD: draw[f"{client}.Bd"]}
        return down | {AU: np.zeros((RANK, CLIENT_RANK)), BU: np.zeros((OUT, CLIENT_RANK))}
    return {}


def start_state(name, init, private):
    """The server's state before the first round."""
    if name.startswith("slora"):
        return {S: np.zeros(len(MASK)), H: init[H]}
    if name.startswith("pfedlora"):
        return {D: np.zeros((OUT, IN)), H: init[H]}
    return {n: v for n, v in init.items() if n not in private}


def descend(w, t, x, y, names, steps=LOCAL_STEPS, kept=None, lr=LR, model=AT_RUNS_SCALE):
    """Gradient steps on the named tensors; kept: {name: where alone a gradient counts}."""
    for _ in range(steps):
        _, grads = loss_and_grads(w, t, x, y, model)
        for n, where in (kept or {}).items():
            masked = np.zeros(grads[n].shape)
            masked[where] = grads[n][where]
            grads[n] = masked
        t = t | {n: t[n] - lr * grads[n] for n in names}
    return t


def sketched(w, full, t, index, client, x, y, lr):
    """FSLoRA: descent in B and A under s B S A; what is not drawn has no gradient, and stays."""
    drawn = np.array([SKETCHES[index][client]])
    s = np.zeros((RANK, RANK))
    s[drawn, drawn] = RANK / CLIENT_RANK
    for _ in range(LOCAL_STEPS):
        _, by_b = loss_and_grads(w, t | {A: s @ t[A]}, x, y)  # in B, of s B (S A)
        _, by_a = loss_and_grads(w, t | {B: t[B] @ s}, x, y)  # in A, of s (B S) A
        t = t | {A: t[A] - lr * by_a[A], B: t[B] - lr * by_b[B], H: t[H] - lr * by_a[H]}
    still = np.delete(np.arange(RANK), drawn)
    assert close(t[A][still], full[A][still])
    assert close(t[B][:, still], full[B][:, still])
    return {A: t[A][drawn], B: t[B][:, drawn], SLOTS: drawn, H: t[H]}


def folded_in(w, full, index, client, x, y, lr):
    """Fed-PLoRA: W0 + sum_{j not drawn} s B_(j) A_(j) is frozen, and the drawn module is trained."""
    drawn, rest = np.array([SKETCHES[index][client]]), np.array([1 - SKETCHES[index][client]])
    w = w + SCALE * full[B][:, rest] @ full[A][rest]
    own = {A: full[A][drawn], B: full[B][:, drawn], H: full[H]}
    start, _ = loss_and_grads(w, own, x, y)
    after = descend(w, own, x, y, (A, B, H), lr=lr)
    return after | {SLOTS: drawn}, start, w + delta_w(after)


def best_slots(before, probe, active):
    """LoRA-A2: the highest |dB[:,i]| |A[i,:]| (B active) or |B[:,i]| |dA[i,:]|, d = probe
    minus broadcast; of one module, the top CLIENT_RANK."""
    factors = before | {active: probe[active] - before[active]}
    scores = np.linalg.norm(factors[B], axis=0) * np.linalg.norm(factors[A], axis=1)
    assert np.diff(np.sort(scores)).min() > 1e-6, scores  # no ties
    return np.sort(np.argsort(scores)[-CLIENT_RANK:])


def run(name):
    rounds, trained_in, private, server = ALGORITHMS[name]
    w0, data, lora, gram, rng = make_problem()
    draws = fresh_draws(name, rounds, rng)
    init = gram if name.startswith("florg") else lora
    if name == "lora-a2":  # rows so balanced that the clients choose different slots
        init = lora | {A: lora[A] * BALANCE[:, None]}
    if name in ADAPTED:  # an adapter to start from
        init = lora | {B: 0.5 * np.random.default_rng(SEED + 31).standard_normal((OUT, RANK))}
    if name == "ravan":
        init = ravan_start(lora)
    pair = {PA: fresh_a(rng), PB: np.zeros((OUT, RANK))} if PA in private else {}
    state = start_state(name, init, private)
    local = {c: {n: (init | pair)[n] for n in private} for c in ROWS}
    base, start, model = np.zeros(w0.shape), {}, MODELS.get(name, AT_RUNS_SCALE)
    if name == "fed-sb":
        state = fed_sb_start(init)
        start = {"start": {"state": state}}
    if name == "federa":
        factors, base = federa_start(w0)
        state = state | factors
        start = {"start": {"state": state, "base": base}}
    server_model = model | {"factors": SCALE}  # the server's factors have the run's rank
    expected, rate = [], RATES.get(name, LR)
    for index in range(rounds):
        trained = (*trained_in(index), H)
        draw = draws[index] if draws else None
        w = w0 + base
        uploads, losses, products = {}, {}, {}
        for c, (x, y) in data.items():
            t = state | local[c] | local_start(name, c, draw, state)
            losses[c], _ = loss_and_grads(w, t, x, y, model)
            phases = (tuple(pair), trained) if pair else (trained,)
            if name == "pfedlora-together":
                phases = ((*pair, *trained),)
            slots, kept, lr = None, {}, rate
            if name == "lora-a2":
                lr = RATIO * lr if trained[0] == B else lr  # appendix B: eta_B = 5 eta_A
                slots = best_slots(t, descend(w, t, x, y, trained, steps=1, lr=lr), trained[0])
                kept = {trained[0]: slot_index(trained[0], slots)}
            if name == "fslora":
                uploads[c] = sketched(w, state, t, index, c, x, y, lr)
                local[c], products[c] = {}, {"delta": base + OWN * delta_w(uploads[c])}
                continue
            if name == "fed-plora":
                uploads[c], start_loss, model_c = folded_in(w, state, index, c, x, y, lr)
                assert close(start_loss, losses[c])  # nothing of the server's model is lost
                local[c], products[c] = {}, {"delta": model_c - w0}
                continue
            for names in phases:
                t = descend(w, t, x, y, names, kept=kept, lr=lr, model=model)
            if name == "fedrot-lora":
                t = turned(index, t, state)
            if name == "ravan":
                t = folded(t)
            shared = {n: v for n, v in t.items() if n not in pair}
            products[c] = {"delta": base + delta_w(shared, model)}
            if model["factors"] != SCALE:  # s_k B_k A_k, sent in the run's scale
                t = t | {B: OWN * t[B]}
            local[c] = {n: t[n] for n in private}
            uploads[c] = {n: t[n] for n in trained if n in t and n not in private}
            if name == "lora-a2":
                sent = {n: t[n][where] for n, where in kept.items()}
                uploads[c] = sent | {SLOTS: slots, H: t[H]}
        state, base, extra = server(index, state, base, uploads, draw)
        # private B: no global delta W; FLoRA: no factors, all is in the base
        delta = None if B in private else base + (0.0 if name.startswith(FRESH) else delta_w(state, server_model))
        if B not in private and G not in state:
            check_mean(name, state, delta, average(products, "delta"), extra)
        if name in MOVES_BASE:
            extra = extra | {"base": base}
        result = {"state": state, "delta_w": delta, "local": dict(local)}
        expected.append(result | {"uploads": uploads, "loss": losses} | extra)
    rank = {"rank": CLIENT_RANK} if name in RANKED else {}
    clients = {c: {"x": x, "y": y} | rank for c, (x, y) in data.items()}
    golden = {"algorithm": name, "seed": SEED, "scale": SCALE, "lr": rate}
    golden |= {"local_steps": LOCAL_STEPS, "rounds": rounds, "W0": w0}
    golden |= SETTINGS.get(name, {}) | ({"draws": draws} if draws else {})
    golden |= {"personal": pair[PA]} if pair else {}
    golden |= {"clients": clients, "init": init} | start | {"expected": expected}
    # arrays to nested lists, NumPy numbers to Python's; floats print as repr
    return json.loads(json.dumps(golden, default=lambda v: v.tolist()))


def main():
    print(f"gradients agree with finite differences to {check_gradients():.1e}")
    return write_or_compare(__doc__, HERE, ALGORITHMS, run)


if __name__ == "__main__":
    sys.exit(main())
