"""A vocabulary of 262,144 tokens made like a real one: bytes, punctuation, words, scripts."""

import itertools
import random
import re
from functools import cache

from mlx_diffusiongemma.constraints.vocabulary import Vocabulary

SIZE = 262_144
PAD, EOS, TURN_END = 0, 1, 106
FIRST_BYTE = 238  # token of the byte 0; the 256 bytes follow each other, as in Gemma's
_STARTS = re.findall(
    r"\w+", "b br c ch cl d dr f fl g gr h j k l m n p pl pr qu r s sh st t th tr v w x y z"
)
_VOWELS = ("a", "e", "i", "o", "u", "ea", "ee", "ou", "ai", "io")
_ENDS = ("", "", "", "n", "r", "s", "t", "l", "ng", "nd", "st", "ck", "m", "d")
_CODE = re.findall(
    r"\w+",
    "def return import from class self None True False null true false if else elif for while in "
    "not and or int str float bool list dict name id type value key data items date time address "
    "email phone city country status total price count description title created updated",
)
_MARKS = "{}[]()<>:;,.!?'\"`~@#$%^&*-_+=/\\|"


@cache
def token_bytes() -> tuple[bytes | None, ...]:
    """The bytes of each token; None for control tokens."""
    tokens: list[bytes | None] = [None] * FIRST_BYTE + [bytes([byte]) for byte in range(256)]
    seen = {token for token in tokens if token}
    for text in itertools.islice(_texts(random.Random(5)), 20 * SIZE):
        token = text.encode()
        if token not in seen:
            seen.add(token)
            tokens.append(token)
            if len(tokens) == SIZE:
                return tuple(tokens)
    raise AssertionError("the recipe has too few texts")


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary.of(
        token_bytes(), end_ids=frozenset({EOS, TURN_END}), padding_ids=frozenset({PAD})
    )


def _texts(rng: random.Random):
    yield from (letter * count for letter in " \n\t-=*#._" for count in range(2, 33))
    yield from _MARKS
    yield from map("".join, itertools.product(_MARKS, _MARKS))
    yield from (
        f"{a}{b}" for a in ('"', '":', '",', '": "', '","', '", "', "},", "],", "{") for b in _MARKS
    )
    yield from (f" {mark}" for mark in _MARKS)
    yield from (f"{word}{end}" for word in _CODE for end in ("", '"', '":', '": ', "(", "_", "="))
    yield from (f"{start}{word}" for word in _CODE for start in (" ", '"', "_", ".", '{"', ' "'))
    for block in (0x00C0, 0x0370, 0x0400, 0x0590, 0x0600, 0x0900, 0x0E00, 0x3040, 0x30A0):
        yield from map(chr, range(block, block + 0x60))
    yield from map(chr, range(0x4E00, 0x4E00 + 12_000))
    yield from map(chr, range(0xAC00, 0xAC00 + 4_000))
    yield from map(chr, range(0x1F300, 0x1F600))
    while True:
        word = "".join(
            rng.choice(_STARTS) + rng.choice(_VOWELS) + rng.choice(_ENDS)
            for _ in range(rng.choice((1, 1, 2, 2, 2, 3, 3, 4)))
        )
        kind = rng.random()
        if kind < 0.5:
            word = " " + word
        if kind > 0.8 or kind < 0.1:
            word = word.title()
        if 0.50 < kind < 0.53:
            word = "".join(chr(0x0430 + ord(letter) % 32) for letter in word)
        if 0.53 < kind < 0.55:
            word = "".join(chr(0x4E00 + rng.randrange(4000)) for _ in range(rng.choice((2, 2, 3))))
        yield word
