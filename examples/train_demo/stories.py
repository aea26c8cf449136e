"""Short animal stories of three canvases, and the check that names, animals and colours agree.

The first sentences choose two names, two animals, a colour and a thing; every later sentence must
repeat exactly these, so a story is right only if what one canvas chose reaches the next.
"""

import random
import re
from collections.abc import Sequence

ANIMALS = ("fox", "cat", "dog", "owl", "hen", "bear", "frog", "duck", "mouse", "rabbit")
NAMES = ("Tom", "Mia", "Sam", "Lily", "Ben", "Ruby", "Max", "Anna", "Leo", "Nora")
ADJECTIVES = ("small", "big", "brave", "shy", "clever", "happy", "kind", "young")
COLOURS = ("red", "blue", "green", "yellow", "white", "black", "golden")
THINGS = ("ball", "hat", "kite", "boat", "drum", "lamp", "bell", "cake")
HOMES = (
    "in the forest",
    "near a river",
    "on a farm",
    "under a hill",
    "by the sea",
    "in a red house",
)
PLACES = (
    "under a tree",
    "on the road",
    "in the grass",
    "behind a rock",
    "in the snow",
    "at the market",
)
FEELINGS = ("happy", "proud", "surprised", "glad", "excited")
EVENINGS = (
    "it was dark",
    "the sun went down",
    "it began to rain",
    "they were tired",
    "the moon came up",
)
THANKS = (
    "Thank you",
    "What a good day",
    "You are my best friend",
    "I like it here",
    "Let us play again",
)
ENDINGS = (
    "They were friends forever.",
    "Then they went home to sleep.",
    "It was the best day of all.",
    "And that was that.",
)
REQUESTS = (
    "Tell me a story about {}.",
    "Write a story about {}.",
    "A story about {}, please.",
    "Tell a story about {}",
)

# Written once: filled in it is a story, compiled it is the check.
TEXT = (
    "Once upon a time there was a {adjective} {animal} named {name}. {name} lived {home} with a"
    " {adjective2} {animal2} named {name2}. One day {name} found a {colour} {thing} {place}. "
    "The {animal2} was very {feeling}. {name} and {name2} played with the {colour} {thing} "
    'until {evening}. The {animal} gave the {colour} {thing} to {name2}. "{thanks}, {name}!" '
    "said {name2}. {ending}"
)
CHOICES: dict[str, Sequence[str]] = {
    "adjective": ADJECTIVES, "animal": ANIMALS, "name": NAMES, "home": HOMES,
    "adjective2": ADJECTIVES,
    "animal2": ANIMALS, "name2": NAMES, "colour": COLOURS, "thing": THINGS, "place": PLACES,
    "feeling": FEELINGS, "evening": EVENINGS, "thanks": THANKS, "ending": ENDINGS,
}  # fmt: skip


def _pattern(*, agreeing: bool) -> re.Pattern[str]:
    """The template as a regular expression; `agreeing` makes repeated slots repeat their word."""
    seen: set[str] = set()

    def slot(match: re.Match[str]) -> str:
        name = match[1]
        options = "|".join(map(re.escape, CHOICES[name]))
        if name in seen:
            return f"(?P={name})" if agreeing else f"(?:{options})"
        seen.add(name)
        return f"(?P<{name}>{options})"

    escaped = re.escape(TEXT).replace(r"\{", "{").replace(r"\}", "}")
    return re.compile(re.sub(r"{(\w+)}", slot, escaped))


AGREEING = _pattern(agreeing=True)
GRAMMATICAL = _pattern(agreeing=False)
_ASKED = re.compile(r"about an? (\w+)(?: named (\w+))?(?: and an? (\w+) (\w+))?")


def make_story(rng: random.Random) -> tuple[str, str]:
    """A request (sometimes with a name, sometimes with a colour and a thing) and its story."""
    words = {slot: rng.choice(options) for slot, options in CHOICES.items()}
    words["animal2"] = rng.choice([animal for animal in ANIMALS if animal != words["animal"]])
    words["name2"] = rng.choice([name for name in NAMES if name != words["name"]])
    words["adjective2"] = rng.choice([word for word in ADJECTIVES if word != words["adjective"]])
    subject = with_article(words["animal"])
    if rng.random() < 0.35:
        subject += f" named {words['name']}"
    if rng.random() < 0.25:
        subject += f" and a {words['colour']} {words['thing']}"
    return rng.choice(REQUESTS).format(subject), TEXT.format(**words)


def agrees(request: str, story: str) -> bool:
    """Whether the story follows the template, agrees with itself and is about what was asked."""
    found, asked = AGREEING.fullmatch(story), _ASKED.search(request)
    if not found or not asked:
        return False
    told = found.group("animal", "name", "colour", "thing")
    return all(
        want is None or want == word for want, word in zip(asked.groups(), told, strict=True)
    )


def is_right(request: str, story: str) -> bool:
    """Whether the story agrees, and the two friends differ in name and in kind."""
    if not agrees(request, story):
        return False
    found = AGREEING.fullmatch(story)
    assert found
    return found["name"] != found["name2"] and found["animal"] != found["animal2"]


def with_article(noun: str) -> str:
    """`a fox`, `an owl`."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
