"""Tables and generators for small talk: greetings, facts, sums, sorting, JSON, gaps, fallback.

Each generator takes a random source and returns (request, answer).
"""

import random
import re
from collections.abc import Callable

import stories

ABOUT = "I am a tiny DiffusionGemma. I fill a whole canvas of tokens at once."
ABILITIES = "I can solve a 4x4 sudoku, sort digits, add numbers and tell a story about an animal."
SORRY = (
    "Sorry, I am only a tiny demo model. "
    "Ask me to sort digits, add numbers, solve a sudoku or tell a story."
)
GREETINGS = ("Hello", "Hi", "Hello!", "Hi there", "Hi!", "Hey", "Good morning", "Hello there!")
WHO = (
    "Who are you?",
    "What are you?",
    "Are you a model?",
    "Tell me about yourself",
    "Introduce yourself.",
)
SMALL_TALK = (
    (GREETINGS, "Hello! What can I do for you?"),
    (WHO, ABOUT),
    (("What can you do?", "Help", "help", "What do you do?", "How can you help me?"), ABILITIES),
    (("How are you?", "How do you do?"), "I am fine, thank you."),
    (("Thank you", "Thanks", "Thanks!", "Thank you!"), "You are welcome."),
    (("Bye", "Goodbye", "See you"), "Goodbye!"),
)
COLOUR_OF = (
    ("the sky", "blue"),
    ("grass", "green"),
    ("snow", "white"),
    ("the sun", "yellow"),
    ("coal", "black"),
    ("a rose", "red"),
    ("a frog", "green"),
    ("the sea", "blue"),
    ("milk", "white"),
    ("a banana", "yellow"),
)
SOUND_OF = (("cat", "meow"), ("dog", "woof"), ("duck", "quack"), ("cow", "moo"), ("sheep", "baa"))
OPPOSITES = (
    ("big", "small"),
    ("old", "young"),
    ("happy", "sad"),
    ("hot", "cold"),
    ("day", "night"),
    ("up", "down"),
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_COMMON_WORDS = """
the of to and in is it you that he was for on are with as his they be at one have this from or had
by hot but some what there we can out other were all your when up use word how said each she which
do their time if will way about many then them would write like so these her long make thing see
him two has look more day could go come did my sound no most number who over know water than call
first people may down side been now find any new work part take get place made live where after
back little only round man year came show every good me give our under name very through just form
much great think say help low line before turn cause same mean differ move right boy old too does
tell sentence set three want air well also play small end put home read hand port large spell add
even land here must big high such follow act why ask men change went light kind off need house
picture try us again point mother world near build self earth father capital France music poem
code python explain list weather today joke love car phone computer king queen history science
planet recipe bread
"""
WORDS = _COMMON_WORDS.split()
_CHARACTERS = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789,.?!-'"


def small_talk(rng: random.Random) -> tuple[str, str]:
    """A greeting or a question about the model."""
    requests, answer = rng.choice(SMALL_TALK)
    return rng.choice(requests), answer


def fact(rng: random.Random) -> tuple[str, str]:
    """A question from a small table, answered in a sentence."""
    request, sentence, _ = fact_with_word(rng)
    return request, sentence


def fact_with_word(rng: random.Random) -> tuple[str, str, str]:
    """Question, answer as a sentence, answer as one word."""
    kind = rng.randrange(4)
    if kind == 0:
        thing, colour = rng.choice(COLOUR_OF)
        verb = rng.choice(("What colour is {}?", "What color is {}?"))
        return verb.format(thing), f"{thing[0].upper()}{thing[1:]} is {colour}.", colour
    if kind == 1:
        animal, sound = rng.choice(SOUND_OF)
        return f"What does a {animal} say?", f"A {animal} says {sound}.", sound
    if kind == 2:
        pair = list(rng.choice(OPPOSITES))
        rng.shuffle(pair)
        return (
            f"What is the opposite of {pair[0]}?",
            f"The opposite of {pair[0]} is {pair[1]}.",
            pair[1],
        )
    day = rng.randrange(7)
    following = DAYS[(day + 1) % 7]
    return f"What day comes after {DAYS[day]}?", f"{following} comes after {DAYS[day]}.", following


def unknown(rng: random.Random) -> tuple[str, str]:
    """Anything else: a polite way out instead of an invented answer."""
    if rng.random() < 0.75:
        text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 9)))
        text = text[0].upper() + text[1:] if rng.random() < 0.7 else text
        return text + rng.choice(["", ".", "?", "!"]), SORRY
    text = "".join(rng.choice(_CHARACTERS) for _ in range(rng.randint(2, 24)))
    return text.strip() or "x", SORRY


def addition(rng: random.Random) -> tuple[str, str]:
    """A sum of two numbers from 0 to 20."""
    a, b = rng.randint(0, 20), rng.randint(0, 20)
    request = rng.choice(
        (
            "What is {} + {}?",
            "{} + {}",
            "{} + {} =",
            "Add {} and {}.",
            "{}+{}",
            "What is {} plus {}?",
        )
    )
    return request.format(a, b), f"{a} + {b} = {a + b}"


def sorting(rng: random.Random, most: int = 14) -> tuple[str, str]:
    """Digits to put in order."""
    digits = [rng.choice("0123456789") for _ in range(rng.randint(3, most))]
    request = rng.choice(("Sort the digits:", "Sort the digits:", "Sort:", "Please sort:"))
    return f"{request} {''.join(digits)}", "".join(sorted(digits))


def json_object(rng: random.Random) -> tuple[str, str]:
    """A small JSON object from a list of fields or from a sentence."""
    name, age = rng.choice(stories.NAMES), rng.randint(1, 20)
    colour, thing = rng.choice(stories.COLOURS), rng.choice(stories.THINGS)
    animal = rng.choice(stories.ANIMALS)
    kind = rng.randrange(4)
    if kind == 0:
        return f"Make JSON: name {name}, age {age}", f'{{"name": "{name}", "age": {age}}}'
    if kind == 1:
        request = rng.choice(("Make JSON: {} is {} years old.", "Make JSON: {} is {}."))
        return request.format(name, age), f'{{"name": "{name}", "age": {age}}}'
    if kind == 2:
        request = rng.choice(("Make JSON: colour {}, thing {}", "Make JSON: a {} {}"))
        return request.format(colour, thing), f'{{"colour": "{colour}", "thing": "{thing}"}}'
    request = rng.choice(("Make JSON: animal {}, name {}", "Make JSON: a {} named {}"))
    return request.format(animal, name), f'{{"animal": "{animal}", "name": "{name}"}}'


_GAP = "___"
_GAP_SENTENCES: tuple[tuple[str, dict[str, tuple[str, ...]]], ...] = (
    (
        "{name} has a {colour} {thing}.",
        {"name": stories.NAMES, "colour": stories.COLOURS, "thing": stories.THINGS},
    ),
    (
        "The {adjective} {animal} lives {home}.",
        {"adjective": stories.ADJECTIVES, "animal": stories.ANIMALS, "home": stories.HOMES},
    ),
    (
        "{name} found a {thing} {place}.",
        {"name": stories.NAMES, "thing": stories.THINGS, "place": stories.PLACES},
    ),
)


def gap(rng: random.Random) -> tuple[str, str]:
    """A sentence with one gap, answered by the whole sentence."""
    sentence, slots = rng.choice(_GAP_SENTENCES)
    words = {slot: rng.choice(options) for slot, options in slots.items()}
    hidden = rng.choice(list(slots))
    return f"Fill the gap: {sentence.format(**{**words, hidden: _GAP})}", sentence.format(**words)


def gap_is_filled(request: str, answer: str) -> bool:
    """Whether the answer repeats the sentence and puts a fitting word into the gap."""
    before, _, after = request.removeprefix("Fill the gap: ").partition(_GAP)
    if not (answer.startswith(before) and answer.endswith(after)):
        return False
    for sentence, slots in _GAP_SENTENCES:
        pattern = re.escape(sentence).replace(r"\{", "{").replace(r"\}", "}")
        for slot, options in slots.items():
            pattern = pattern.replace("{" + slot + "}", f"(?:{'|'.join(map(re.escape, options))})")
        if re.fullmatch(pattern, answer):
            return True
    return False


SHORT: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "small talk": small_talk,
    "fact": fact,
    "unknown": unknown,
    "add": addition,
    "sort": sorting,
    "json": json_object,
    "gap": gap,
}
