"""Requests for a story, and the rule that tells whether one is right: the demo's longest task.

A story fills three canvases, and each of them repeats names, animals and a thing that the first one
chose. So it shows whether what one canvas says reaches the next.
"""

import random
import re
from collections.abc import Mapping, Sequence

_ADJECTIVES = ("small", "big", "brave", "shy", "clever", "happy", "kind", "young")
_ANIMALS = ("fox", "cat", "dog", "owl", "hen", "bear", "frog", "duck", "mouse", "rabbit")
_NAMES = ("Tom", "Mia", "Sam", "Lily", "Ben", "Ruby", "Max", "Anna", "Leo", "Nora")
_HOMES = "in the forest|near a river|on a farm|under a hill|by the sea|in a red house"
_PLACES = "under a tree|on the road|in the grass|behind a rock|in the snow|at the market"
_EVENINGS = "it was dark|the sun went down|it began to rain|they were tired|the moon came up"
_THANKS = "Thank you|What a good day|You are my best friend|I like it here|Let us play again"
_ENDINGS = (
    "They were friends forever.|Then they went home to sleep.|It was the best day of all.|"
    "And that was that."
)
# What may stand in each gap of the text; a gap that comes again repeats its words.
_GAPS: Mapping[str, Sequence[str]] = {
    "adjective": _ADJECTIVES,
    "animal": _ANIMALS,
    "name": _NAMES,
    "home": _HOMES.split("|"),
    "adjective2": _ADJECTIVES,
    "animal2": _ANIMALS,
    "name2": _NAMES,
    "colour": ("red", "blue", "green", "yellow", "white", "black", "golden"),
    "thing": ("ball", "hat", "kite", "boat", "drum", "lamp", "bell", "cake"),
    "place": _PLACES.split("|"),
    "feeling": ("happy", "proud", "surprised", "glad", "excited"),
    "evening": _EVENINGS.split("|"),
    "thanks": _THANKS.split("|"),
    "ending": _ENDINGS.split("|"),
}
_TEXT = (
    "Once upon a time there was a {adjective} {animal} named {name}. {name} lived {home} with a"
    " {adjective2} {animal2} named {name2}. One day {name} found a {colour} {thing} {place}. "
    "The {animal2} was very {feeling}. {name} and {name2} played with the {colour} {thing} "
    'until {evening}. The {animal} gave the {colour} {thing} to {name2}. "{thanks}, {name}!" '
    "said {name2}. {ending}"
)
_REQUESTS = (
    "Tell me a story about {}.",
    "Write a story about {}.",
    "A story about {}, please.",
    "Tell a story about {}",
)
_ASKED = re.compile(r"about an? (\w+)(?: named (\w+))?(?: and an? (\w+) (\w+))?")


def request(rng: random.Random) -> str:
    """A request for a story: about an animal, sometimes with its name, sometimes with a thing."""
    animal = rng.choice(_ANIMALS)
    subject = f"{'an' if animal[0] in 'aeiou' else 'a'} {animal}"
    if rng.random() < 0.35:
        subject += f" named {rng.choice(_NAMES)}"
    if rng.random() < 0.25:
        subject += f" and a {rng.choice(_GAPS['colour'])} {rng.choice(_GAPS['thing'])}"
    return rng.choice(_REQUESTS).format(subject)


def is_right(asked: str, story: str) -> bool:
    """Whether a story is whole, agrees with itself and with the request, and has two friends."""
    told, wanted = _STORY.fullmatch(story.strip()), _ASKED.search(asked)
    if told is None or wanted is None:
        return False
    if told["name"] == told["name2"] or told["animal"] == told["animal2"]:
        return False
    heard = told.group("animal", "name", "colour", "thing")
    return all(want in (None, word) for want, word in zip(wanted.groups(), heard, strict=True))


def _pattern() -> re.Pattern[str]:
    pieces, seen = [], set()
    for piece in re.split(r"({\w+})", _TEXT):
        gap = piece.strip("{}")
        if not piece.startswith("{"):
            pieces.append(re.escape(piece))
        elif gap in seen:
            pieces.append(f"(?P={gap})")
        else:
            pieces.append(f"(?P<{gap}>{'|'.join(map(re.escape, _GAPS[gap]))})")
            seen.add(gap)
    return re.compile("".join(pieces))


_STORY = _pattern()
