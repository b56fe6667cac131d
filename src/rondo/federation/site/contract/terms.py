"""The terms of a plan: everything that it asks of a site, beside what the site's contract allows.

The terms of the plan itself are known before a row is read for it. The terms of its training (rows, tensors, bytes) are
known once model and rows are there, and nothing has left yet.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from torch import nn

from rondo import own_code
from rondo.algorithm import Upload
from rondo.algorithms.trial import trial_upload
from rondo.config.checks import own_names
from rondo.config.inputs import BUILTIN_MODEL, BUILTIN_NETWORKS
from rondo.config.schema import RunConfig
from rondo.config.task_kinds import PAIR_KINDS
from rondo.data.members import Member
from rondo.federation.plan import Plan
from rondo.federation.site.contract import protection
from rondo.federation.site.contract.document import Contract, Term
from rondo.federation.site.ledger import SiteLedger
from rondo.models.networks.network import Network
from rondo.params import AUXILIARY_PREFIX, HEAD_PREFIX, Params, Role, module_of, num_bytes, role
from rondo.report.terminal import human_bytes
from rondo.roles import PACKED_PREFIXES
from rondo.runs.assembling.assembly import Assembly
from rondo.tasks.make import task_class
from rondo.tasks.row_checks import columns


def refusal(terms: Iterable[Term]) -> str | None:
    """The reason to refuse a plan of these terms, all that are not kept in one; None if all are."""
    return "; ".join(term.reason for term in terms if not term.kept) or None


# --- the plan -----------------------------------------------------------------------------------------------------


def of_plan(plan: Plan, config: RunConfig, contract: Contract, own_model: str | None) -> Iterator[Term]:
    """The terms that show without rows and model. ``config``: the plan's, settled. ``own_model``: the site's copy
    of the base model."""
    rows, training, outgoing = contract.rows, contract.training, contract.outgoing
    name = config.algorithm.name
    yield Term("method", name, _any(training.methods), training.methods is None or name in training.methods)
    yield of_code(config, contract)
    built_in = config.model.name in (BUILTIN_MODEL, *BUILTIN_NETWORKS) or own_code.is_name(config.model.name)
    fetched = own_model is None and not built_in
    base = "this site's copy" if own_model is not None else config.model.name
    known = "any" if training.fetch_models else "built-in models and this site's copy (--model), and no hub"
    yield Term("base model", base, known, training.fetch_models or not fetched)
    yield from _columns(config, contract)
    yield from _classes(plan, config, contract)
    yield from protection.of_plan(config, contract)
    held_back = config.data.validation_fraction
    share = f"{rows.largest_held_back:.0%} at most"
    yield Term("rows held back", f"{held_back:.0%}", share, held_back <= rows.largest_held_back)
    # A plan that says which layers are the head could name any.
    what = config.whole_tensors if config.model.head_layers is None else config.model.head_layers
    whole = what not in (None, "head")
    tensors = "factors" if config.has_factors else "no factors"
    tensors += f", and whole tensors ({what})" if whole else ", and the head if there is one"
    yield Term("trained tensors", tensors, training.tensors, training.tensors == "whole" or not whole)
    if config.has_factors:
        rank = max(config.adapter.r, *config.adapter.rank_pattern.values(), 0)
        yield Term("rank", str(rank), f"{training.largest_rank} at most", rank <= training.largest_rank)
    yield from map(_pattern, _patterns(config))
    # A step that shrinks what is trained, or pulls it back, forgets the steps before it: the last one's rows are left.
    largest = config.train.lr * max(1.0, config.train.lr_ratio)
    decay = largest * (config.train.weight_decay + float(config.algorithm.fields.get("mu") or 0.0))
    yield Term("decay per step", f"{decay:.3g}", f"{_MOST_DECAY:g} at most", decay <= _MOST_DECAY)
    per_round = config.clients.per_round
    clients = "all" if per_round is None else str(per_round)
    least = f"{training.least_clients} at least"
    yield Term("clients per round", clients, least, per_round is None or per_round >= training.least_clients)
    minutes = f"{training.minutes_per_round:g} minutes per letter, {training.minutes_per_run:g} in all"
    yield Term("rounds", str(config.rounds), minutes)
    if config.guarantee.masks_uploads:  # neither leaves
        return
    exact = "" if outgoing.decimals is None else f", to {outgoing.decimals} decimals"
    yield Term("training losses", "asked", f"yes{exact}" if outgoing.losses else "no: they are kept back")
    if held_back and (config.evaluation.clients_every or plan.labels is not None):
        yield Term("scores", "asked", f"yes{exact}" if outgoing.scores else "no: they are kept back")


def of_code(config: RunConfig, contract: Contract) -> Term:
    """The term of code of one's own, which is imported only if this is kept."""
    code = ", ".join(f"{key} = {value}" for key, value in own_names(config).items())
    allowed = contract.training.allow_code
    words = "yes" if allowed else "none: look at it first, then set training.allow_code"
    return Term("code of one's own", code or "none", words, allowed or not code)


_MOST_DECAY = 0.1
"""Largest share of a tensor's change that a step may take back."""
_PREDICTED = (
    *("task.response", "task.answers", "task.answer_start", "task.answer", "task.target"),
    *("task.tags", "task.spans", "task.chosen", "task.rejected", "task.score"),
)
"""Keys of columns that a run learns to predict, beside ``task.label``."""


def _columns(config: RunConfig, contract: Contract) -> Iterator[Term]:
    """The columns that are read. A task of one's own gets the columns of the contract, and no other."""
    asked = [(key, name) for key, name, _ in columns(config.task)]
    predicted = [name for key, name in asked if key in _PREDICTED]
    predicted += config.task.label_columns
    read = [name for key, name in asked if key not in _PREDICTED]
    if config.task.kind in PAIR_KINDS and config.task.prompt is None:  # it is read where the rows have it
        read += {"prompt"} & set(contract.rows.inputs)
    read += [] if config.data.hold_out_by is None else [config.data.hold_out_by]
    for subject, names, allowed in (
        ("input columns", read, contract.rows.inputs),
        ("label columns", predicted, contract.rows.labels),
    ):
        if names:
            cut = config.task.label_separator if names is predicted else None
            shown = ", ".join(names) + ("" if cut is None else f", split at {cut!r}")
            yield Term(subject, shown, ", ".join(allowed) or "none", set(names) <= set(allowed))


def _classes(plan: Plan, config: RunConfig, contract: Contract) -> Iterator[Term]:
    if not task_class(config.task.kind).classes:
        return
    names, most = contract.rows.label_names, contract.rows.most_labels
    allowed = f"at most {most} names" if names is None else ", ".join(names)
    if plan.labels is None:
        yield protection.of_names(config, allowed)
        return
    # A run whose classes are some of the site's would count the rows that have them.
    within = names is None or set(names) <= set(plan.labels)
    yield Term("class names", ", ".join(plan.labels), f"runs that have {allowed}" if names else "any", within)


def _patterns(config: RunConfig) -> Iterator[tuple[str, str]]:
    """The regular expressions of a plan, by key."""
    adapter = config.adapter
    for key in ("target_modules", "exclude_modules", "layers_pattern"):
        value = getattr(adapter, key)
        if isinstance(value, str) and value != "all-linear":
            yield f"adapter.{key}", value
        if isinstance(value, list) and key == "layers_pattern":  # PEFT reads them as patterns
            yield from ((f"adapter.{key}", part) for part in value)
    for key in ("rank_pattern", "alpha_pattern"):
        yield from ((f"adapter.{key}", value) for value in getattr(adapter, key))


_LONGEST_PATTERN, _MOST_CHOICES = 500, 4
_CHOICE = re.compile(r"[*+{(]|(?<!\()\?")
"""The start of a choice: a repeat, an optional part or a group, which may have alternatives."""


def _pattern(entry: tuple[str, str]) -> Term:
    """A regular expression takes a time that is the product of its choices, and without end where they are nested."""
    key, pattern = entry
    nested = re.search(r"\)\s*[*+{]|\(\?[^:]", pattern) is not None or not pattern.isprintable()
    simple = len(pattern) <= _LONGEST_PATTERN and len(_CHOICE.findall(pattern)) <= _MOST_CHOICES and not nested
    shown = pattern if len(pattern) <= 60 else pattern[:57] + "..."
    allowed = f"patterns without repeated groups, with {_MOST_CHOICES} repeats, optional parts and groups at most"
    return Term(key, f"{shown!r}", allowed, simple)


# --- rows and tensors ---------------------------------------------------------------------------------------------


def row_sizes(assembly: Assembly, member: Member) -> Sequence[int]:
    """The number of examples, such as windows, of each of a client's training rows; 1 each where steps are private:
    these count rows."""
    private = assembly.config.guarantee.of_rows
    return [1] * member.client.num_examples if private else assembly.task.row_sizes(member.train)


def rows_behind(sizes: Sequence[int], examples: int) -> int:
    """The fewest rows that so many ``examples`` of a client can be of. ``sizes``: see :func:`row_sizes`."""
    before = [0, *accumulate(sorted(sizes, reverse=True))]
    return bisect_left(before, min(examples, before[-1]))


def of_training(
    contract: Contract,
    config: RunConfig,
    assembly: Assembly,
    counts: Mapping[str, int],
    uploads: Sequence[Upload],
    ledger: SiteLedger,
    run: str,
) -> Iterator[Term]:
    """The terms that show once model and rows are there. ``counts``: rows of each client. ``uploads``: its
    :func:`trials`. ``run``: the plan's."""
    training, report = contract.training, assembly.population.report
    untaught = report["text"].get("answers_beyond_windows", 0)
    left_out = report["rows_bad"] + report["rows_without_target"] + untaught
    most = contract.rows.largest_left_out
    few = left_out <= most * sum(counts.values())
    names = ", ".join(assembly.population.members)
    yield Term(f"rows left out of {names}", "few" if few else "many", f"{most:.0%} at most", few)
    for name, member in assembly.population.members.items():
        sizes = row_sizes(assembly, member)
        enough = len(sizes) >= training.least_rows
        if not config.guarantee.of_rows:  # there each row decides its part, so their number must show nowhere
            yield _held_back(contract.rows.largest_held_back, assembly, member, len(sizes))
        yield Term(f"rows of {name}", "enough" if enough else "too few", f"{training.least_rows} at least", enough)
        steps = config.train.local_steps
        passed = steps is None or steps >= training.least_steps or steps * config.train.batch_size >= sum(sizes)
        asked = "a pass over the rows" if steps is None else f"{steps} steps of {config.train.batch_size} rows"
        yield Term(f"steps of {name}", asked, f"{training.least_steps}, or a pass over the rows, at least", passed)
    if training.memory_mb is not None:
        yield _memory(training.memory_mb, config, assembly)
    sites = assembly.model.network.sites.values()
    rank = max((site.rank for site in sites), default=0)
    yield Term("rank in the model", str(rank), f"{training.largest_rank} at most", rank <= training.largest_rank)
    yield from protection.of_training(config, assembly, contract, ledger, run)
    leaving = {name for upload in uploads for name in upload.params}
    yield from of_tensors(contract, leaving, embeddings(assembly.model.network.module))
    largest, limit = max(num_bytes(upload.params) for upload in uploads), contract.outgoing.largest_mb
    yield Term("an upload's tensors", human_bytes(largest), f"{limit:g} MB at most", largest <= limit * 1e6)


def _held_back(largest: float, assembly: Assembly, member: Member, trained: int) -> Term:
    """The term of a client's held-back rows. Those of a person are held back together, so they can be more than the
    plan's share, which a share of few rows is rounded to."""
    held = len(assembly.task.row_sizes(member.validation))
    within = held < largest * (held + trained) + 1
    return Term(f"rows held back of {member.client.id}", "few" if within else "many", f"{largest:.0%} at most", within)


def misshapen(params: Params, network: Network) -> str | None:
    """The first of a server's tensors that has not the form of the site's own model; None if all have it. Factors of a
    larger rank would bring the gradient of a whole layer into an upload."""
    for name, tensor in params.items():
        of, site = role(name), network.sites.get(module_of(name))
        initial = network.initial.get(name)
        if of in _RANK_AXIS and site is not None:
            fits = tensor.dim() == 2 and tensor.shape[_RANK_AXIS[of]] <= site.rank
        else:
            fits = initial is None or tensor.shape == initial.shape
        if not fits:
            return name
    return None


_RANK_AXIS = {Role.DOWN: 0, Role.GRAM: 0, Role.CORE: 0, Role.PERSONAL_DOWN: 0, Role.UP: 1, Role.PERSONAL_UP: 1}
"""The axis of a factor that has its rank."""


def _memory(limit: int, config: RunConfig, assembly: Assembly) -> Term:
    """The term of a step's activations, as a step of two rows measures them."""
    most = config.train.micro_batch or config.train.batch_size
    costs = [sorted((e.cost for e in m.train), reverse=True)[:most] for m in assembly.population.members.values()]
    largest = max(max(step, default=0) * len(step) for step in costs)  # rows are padded to the longest
    fits = largest * assembly.start().bytes_per_cost <= limit * 2**20
    return Term("memory of a step", "enough" if fits else "too much", f"{limit} MiB", fits)


def trials(assembly: Assembly) -> Iterator[Upload]:
    """Uploads of a client that learned nothing, of the first two rounds: methods may take turns."""
    state, client = assembly.first_state(), next(iter(assembly.population.members.values())).client
    for round in map(assembly.round, range(min(2, assembly.config.rounds))):
        shared = assembly.algorithm.broadcast(state, client, round)
        yield trial_upload(assembly.algorithm, shared, client, round)


def of_tensors(contract: Contract, names: Collection[str], embedded: Collection[str]) -> Iterator[Term]:
    """The terms of tensors that leave. ``embedded``: paths of the model's embeddings."""
    allowed, named = contract.training.tensors, contract.training.embeddings
    kinds = {kind: [n for n in sorted(names) if kind_of(n) == kind] for kind in ("factors", "head", "whole")}
    leaving = {kind: names for kind, names in kinds.items() if names}
    unfit = {kind: names for kind, names in leaving.items() if kind not in _ALLOWED[allowed]}
    shown = ", ".join(leaving)
    if unfit:
        shown += f" ({', '.join(next(iter(unfit.values()))[:3])} ...)"
    yield Term("tensors that leave", shown, allowed, not unfit)
    asked = sorted({path for name in names if (path := _layer(name)) in embedded})
    if asked:
        within = set(asked) <= set(named)
        yield Term("embeddings", ", ".join(asked), ", ".join(named) or "none by name", within)


_ALLOWED: Mapping[str, tuple[str, ...]] = {
    "factors": ("factors",),
    "factors+head": ("factors", "head"),
    "whole": ("factors", "head", "whole"),
}
_OF_FULL_RANK = (Role.DENSE, Role.SPARSE, Role.BODY, Role.BUFFER)


def kind_of(name: str) -> str:
    """``"factors"``, ``"head"`` or ``"whole"``, for the tensor called ``name``, or whose scales or places it has."""
    tensor = _tensor(name)
    return "head" if role(tensor) is Role.HEAD else "whole" if role(tensor) in _OF_FULL_RANK else "factors"


def embeddings(module: nn.Module) -> frozenset[str]:
    """Module paths of the layers in which a row of a matrix belongs to a token: embeddings, and the layer that gives
    tokens."""
    paths = {path for path, layer in module.named_modules() if isinstance(layer, nn.Embedding)}
    find = getattr(module, "get_output_embeddings", None)
    output = find() if find is not None else None
    return frozenset(paths | {path for path, layer in module.named_modules() if layer is output})


def _layer(name: str) -> str:
    """The path of the layer that a tensor belongs to."""
    return module_of(_tensor(name).removeprefix(HEAD_PREFIX))


def _tensor(name: str) -> str:
    """The name of the model's tensor that the tensor called ``name`` is about."""
    for prefix in (*PACKED_PREFIXES, AUXILIARY_PREFIX):  # the scales of a control variate have both
        name = name.removeprefix(prefix)
    return name


def _any(names: Collection[str] | None) -> str:
    return "any" if names is None else ", ".join(names)
