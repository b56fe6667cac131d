"""Twelve homes teach one model to understand commands, without sharing what was said.

Source: the English sentence templates of the Home Assistant voice assistant (PyPI package
`home-assistant-intents`), parsed with `hassil`. The templates are first split into training and test templates;
sentences are then drawn by a random walk over each template's expression tree. Rooms, device names, shopping items
and other open slots come from the lists below, and every home knows only a part of each list. Colours, states and
number ranges come from the assistant's own lists.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PACKAGES = "the built-in homes need two packages: pip install home-assistant-intents hassil"
_TEST_SHARE = 0.22  # share of an intent's templates kept for the test set
_OPTIONAL = 0.88  # chance that an optional part of a template is said
_CONCENTRATION = 0.5  # Dirichlet parameter of a home's intent mix: smaller is more uneven
_TRIES = 25  # draws from one intent without a new sentence before it counts as used up
_TRAIN_PER_INTENT, _TEST_PER_INTENT = 55, 12  # training rows in the mean, and the most test rows
_MIN_TRAIN = 3  # intents whose training templates say fewer different sentences are dropped

# Open slots, and device names by the domain that a template asks for ("name/<domain>").
_VOCABULARY = """
area: kitchen, living room, bedroom, bathroom, hallway, office, garage, dining room, nursery, study,
  guest room, laundry room, playroom, pantry, den, library, music room, workshop, sunroom, porch
floor: ground floor, first floor, second floor, third floor, top floor, basement, attic, cellar
zone: office, gym, school, park, swimming pool, town hall, supermarket, cinema, campus, clinic
timer_name: pizza, pasta, laundry, eggs, tea, workout, nap, homework, bread, rice, cake, yoga
timer_command: turn off the lights, open the garage door, lock the front door, close the curtains,
  turn on the heating, turn off the tv, start the dishwasher, switch on the fan, turn on the radio
search_query: Horizon, Midnight, Blue Planet, Wildflowers, Thriller, Sunrise, Nightfall, Home Again, Echoes
shopping_list_item: milk, eggs, bread, apples, butter, coffee, rice, tomatoes, olive oil, onions, cheese,
  bananas, dish soap, toilet paper, chicken, yoghurt, flour, carrots, oat milk
todo_list_item: call the dentist, water the plants, pay the rent, clean the windows, book flights,
  walk the dog, fix the tap, buy stamps, wash the car, pack the tent, return the books
name/light: bedside lamp, reading lamp, floor lamp, ceiling light, desk lamp, corner lamp, wall light,
  porch light, fairy lights, spotlight, night light, mirror light, chandelier
name/switch: coffee machine, heated blanket, air purifier, water pump, kettle, charger, towel rail, aquarium
name/fan: tower fan, ceiling fan, desk fan, extractor fan, pedestal fan, box fan, window fan
name/cover: roller blind, velvet curtain, garage door, patio awning, side gate, roof window, balcony shutter
name/valve: garden tap, water main, sprinkler valve, radiator valve, pool valve, gas valve
name/lock: front door, back door, cellar door, gate lock, bike shed, side door, gun safe, letterbox
name/climate: thermostat, air conditioner, heat pump, radiator, underfloor heating, boiler
name/media_player: tv, soundbar, smart speaker, radio, stereo, record player, projector, jukebox
name/sensor: outdoor humidity, solar power, battery level, air quality, water usage, wind speed
name/binary_sensor: porch window, mailbox, patio door, loft hatch, motion detector, parking spot
name/person: Anna, Ben, Chloe, David, Emma, Farid, Grace, Hiro, Ines, Jonas, Kofi, Lucia
name/weather: Berlin, Oslo, Madrid, Nairobi, Toronto, Lyon, Kyoto, Dublin, Lima, Boston
name/lawn_mower: lawn robot, grass cutter, Mowgli, Shaun, robot mower, Landroid, Husky, Lawnbot
name/todo: chores, packing, weekend, garden, holiday, work, reading, repairs, birthday, party
name/vacuum: robot vacuum, Dusty, Roomba, hoover, Rosie, Dustin, floor cleaner, Sir Sweeps
name/scene: movie night, romantic dinner, good morning, party time, sunset, bedtime, game night
name/script: morning routine, goodnight routine, leaving home, vacation mode, laundry day
name/button: doorbell, panic button, garage opener, coffee button, reset button
name/input_button: door buzzer, snooze button, good night button
name/input_boolean: guest mode, night mode, holiday mode, quiet mode, kids mode, party mode
"""
_WORDS: dict[str, list[str]] = {
    slot: values.split(", ")
    for slot, values in (line.split(": ") for line in _VOCABULARY.replace("\n  ", " ").strip().splitlines())
}

# The assistant's grammar is made to understand, not to speak. These rules tighten it to what people say.
_RULES = {
    "all": "all [of] the",
    "any": "any [of the]",
    "are": "are",
    "close": "(close|shut|lower|close up)",
    "everywhere": "(everywhere|all over|(in|throughout) (the|my) [whole] (home|house|flat)|in every room)",
    "here": "(in here|in (this|the) room)",
    "in": "in",
    "is": "is",
    "light": "(lights|lamps)",
    "lockable": "(locks|doors|windows|gates|garage doors|shutters)",
    "numeric_value_set": "(set|change|turn (up|down)|increase|decrease)",
    "open": "(open|open up|raise|lift)",
    "set": "(set|change|turn)",
    "the": "(the|the|the|my)",
    "turn": "(turn|switch)",
    "which": "which [of the]",
}

# Round numbers inside the assistant's ranges: first, last, step.
_NUMBERS = {
    "temperature": (16, 26, 1),
    "color_temperature": (2000, 6500, 500),
    "timer_hours": (1, 12, 1),
    "timer_minutes": (1, 60, 1),
    "timer_seconds": (10, 55, 5),
}
_UNITS = "hour|minute|second"
_TIDY: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\b(the|my|our)(?: (?:the|my|our)\b)+", r"\1"),
        (rf"\b({'|'.join(_WORDS['area'] + _WORDS['floor'])}) (?:the|my|our) ", r"\1 "),
        (r"\b(?:the|my|our) (?=[A-Z])", ""),  # no article before a proper name
        (r"\b(?:light|lamp)s? (lights|lamps)\b", r"\1"),
        (r"\b(\w+) \1\b", r"\1"),  # "first floor floor"
        (r"\bin ((?:the |my |our )?\w+ floor)\b", r"on \1"),
        (r"^((?:which|what|how many)\b.*s) is\b", r"\1 are"),
        (r"(\d) (?=[%°])", r"\1"),
        (rf"(\d+)[ -]({_UNITS})s?(?! timer)\b(?!s? timer)", r"\1 \2s"),
        (rf"(\d+)([ -])({_UNITS})s(?= timer)", r"\1\2\3"),
        (rf"\b(and \d+)-({_UNITS}) timer", r"\1 \2 timer"),
        (rf"\b1 ({_UNITS})s\b", r"1 \1"),
        (r"\b1/2\b", "half"),
        (r"\bhalf (an hour|a minute)s\b", r"half \1"),
        (r"^((?!.*\bmode\b).*) to (on|off)\b", r"\1 \2"),
    )
)
# Sentences that the grammar accepts but nobody says, and bare "all the fans on", which is a question and a command.
_REJECT = re.compile(
    r"\bturn\b.*\b(?:increase|decrease)\b|^tell me\b.*\blike\b|[{}<>\[\]|]|^down the volume|^complete off "
    r"|^all (?:of )?the\b.* (?:on|off)\b"
)

Row = dict[str, str]
Words = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Homes:
    """The demo's sentences."""

    train: list[Row]
    """Rows {"text", "intent", "home"}, grouped by home ("home-01", "home-02", ...)."""
    test: list[Row]
    """Rows {"text", "intent"} from templates that no training row uses."""
    intents: tuple[str, ...]
    """The sorted label names. A row's label id is the position of its intent."""


class _Grammar:
    """The assistant's English templates. `templates[intent][template text]` lists the domains that {name} may take."""

    def __init__(self) -> None:
        try:
            from hassil import expression, intents, parse_expression
            from home_assistant_intents import get_intents
        except ImportError as error:
            raise ImportError(_PACKAGES) from error
        data: dict[str, Any] = dict(get_intents("en") or {})
        data["expansion_rules"] = {**data["expansion_rules"], **_RULES}
        self._expression, self._intents = expression, intents
        self._parse = parse_expression.parse_sentence
        self._data = intents.Intents.from_dict(data)
        self._trees: dict[str, Any] = {}
        self.templates: dict[str, dict[str, list[str]]] = {}
        for intent in sorted(self._data.intents):
            templates = self.templates[intent] = {}
            for block in self._data.intents[intent].data:
                domains = block.requires_context.get("domain", [])
                for text in block.sentence_texts:
                    templates.setdefault(text, []).extend([domains] if isinstance(domains, str) else domains)

    def say(self, template: str, domains: Sequence[str], words: Words, rng: random.Random) -> str:
        """One random sentence of a template, or an empty string if people would not say it."""
        if template not in self._trees:
            self._trees[template] = self._parse(template).expression
        text = " ".join(self._walk(self._trees[template], domains, words, rng).split())
        for pattern, replacement in _TIDY:
            text = pattern.sub(replacement, text)
        return "" if _REJECT.search(text) else text

    def _walk(self, node: Any, domains: Sequence[str], words: Words, rng: random.Random) -> str:
        kinds = self._expression
        if isinstance(node, kinds.TextChunk):
            return str(node.original_text)
        if isinstance(node, kinds.RuleReference):
            rule = self._data.expansion_rules.get(node.rule_name)
            return self._walk(rule.expression, domains, words, rng) if rule else f"<{node.rule_name}>"
        if isinstance(node, kinds.ListReference):
            return self._value(node.list_name, domains, words, rng)
        items = list(node.items)
        if isinstance(node, kinds.Alternative):
            if node.is_optional:  # the last item is the empty one
                text = self._walk(rng.choice(items[:-1]), domains, words, rng)
                return text if text in ("s", "es") or rng.random() < _OPTIONAL else ""
            return self._walk(rng.choice(items), domains, words, rng)
        if isinstance(node, kinds.Permutation):
            rng.shuffle(items)
            return " ".join(self._walk(item, domains, words, rng) for item in items)
        return "".join(self._walk(item, domains, words, rng) for item in items)

    def _value(self, slot: str, domains: Sequence[str], words: Words, rng: random.Random) -> str:
        if slot == "name":
            slot = f"name/{rng.choice(domains)}" if domains else "name"
        if slot in words:
            return rng.choice(words[slot])
        values: Any = self._data.slot_lists.get(slot)
        if isinstance(values, self._intents.RangeSlotList):
            first, last, step = _NUMBERS.get(slot, (10, 100, 5))
            return str(rng.randrange(max(first, values.start), min(last, values.stop) + 1, step))
        if isinstance(values, self._intents.TextSlotList):
            return self._walk(rng.choice(list(values.values)).text_in, (), words, rng)
        return f"{{{slot}}}"  # no list fills the slot: refused, like an unknown rule


def _split(grammar: _Grammar, rng: random.Random) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Training and test templates by intent. Intents with one template, or with too little to say, are left out."""
    train: dict[str, list[str]] = {}
    test: dict[str, list[str]] = {}
    for intent, templates in grammar.templates.items():
        tries = range(_TRIES)
        texts = [t for t, domains in templates.items() if any(grammar.say(t, domains, _WORDS, rng) for _ in tries)]
        if len(texts) < 2:
            continue
        rng.shuffle(texts)
        test_count = max(1, round(_TEST_SHARE * len(texts)))
        sentences = {grammar.say(t, templates[t], _WORDS, rng) for t in texts[test_count:] for _ in tries}
        if len(sentences - {""}) >= _MIN_TRAIN:
            train[intent], test[intent] = texts[test_count:], texts[:test_count]
    return train, test


def template_split(seed: int = 0) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """(training, test) templates by intent that `homes(seed)` draws from. Raises ImportError without the extra."""
    return _split(_Grammar(), random.Random(seed))


class _Speaker:
    """Says each sentence once. ``shared``: those that several intents say."""

    def __init__(self, grammar: _Grammar, rng: random.Random) -> None:
        self._grammar, self._rng = grammar, rng
        self._owner: dict[str, str] = {}  # case-folded sentence -> the intent that said it first
        self._taken: set[str] = set()
        self.shared: set[str] = set()

    def say(self, intent: str, templates: Sequence[str], words: Words) -> str | None:
        """A new sentence of an intent; None if it has no more."""
        for _ in range(_TRIES):
            template = self._rng.choice(templates)
            text = self._grammar.say(template, self._grammar.templates[intent][template], words, self._rng)
            key = text.casefold()
            if key and self._owner.setdefault(key, intent) != intent:
                self.shared.add(key)
            elif key and key not in self._taken:
                self._taken.add(key)
                return text
        return None


def homes(seed: int = 0, *, clients: int = 12) -> Homes:
    """Sentences of `clients` homes and one common test set; the same arguments give the same rows.

    Each home's number of rows (0.6 to 1.4 of the mean) and mix of intents (Dirichlet, parameter 0.5) are drawn; every
    intent has a home that says it. Intents with little to say have fewer test rows.

    Sentences are unique after case folding, over training, test and all intents together.
    Raises ImportError if the packages are missing.
    """
    grammar, rng = _Grammar(), random.Random(seed)
    train_templates, test_templates = _split(grammar, rng)
    intents = tuple(sorted(train_templates))
    speaker = _Speaker(grammar, rng)
    test: list[Row] = []
    for intent in intents:
        for _ in range(_TEST_PER_INTENT):
            text = speaker.say(intent, test_templates[intent], _WORDS)
            if text is not None:
                test.append({"text": text, "intent": intent})
    anchor_homes = [rng.randrange(clients) for _ in intents]
    sizes = [rng.uniform(0.6, 1.4) for _ in range(clients)]
    train: list[Row] = []
    for number, size in enumerate(sizes):
        words = {slot: rng.sample(values, max(3, len(values) // 3)) for slot, values in _WORDS.items()}
        mix = [rng.gammavariate(_CONCENTRATION, 1.0) for _ in intents]
        remaining = max(1, round(_TRAIN_PER_INTENT * len(intents) * size / sum(sizes)))
        promised = [index for index, home in enumerate(anchor_homes) if home == number for _ in range(_MIN_TRAIN)]
        while promised or (remaining > 0 and any(mix)):
            index = promised.pop() if promised else rng.choices(range(len(intents)), mix)[0]
            text = speaker.say(intents[index], train_templates[intents[index]], words)
            if text is None:
                mix[index] = 0.0
                continue
            train.append({"text": text, "intent": intents[index], "home": f"home-{number + 1:02d}"})
            remaining -= 1
    return Homes(
        train=[row for row in train if row["text"].casefold() not in speaker.shared],
        test=[row for row in test if row["text"].casefold() not in speaker.shared],
        intents=intents,
    )
