"""Whole and decimal numbers within bounds, as languages; JSON's spelling, without exponents."""

from mlx_diffusiongemma.constraints.language import (
    Choice,
    Language,
    any_of,
    characters,
    join,
    optional,
    repeat,
    text,
)

# Python, JavaScript and JSON parsers agree on whole numbers up to here.
LARGEST = 10**15 - 1
_DIGIT = characters((48, 57))
_FRACTION_DIGITS = 12
_FRACTION = join(".", repeat(_DIGIT, 1, _FRACTION_DIGITS))
# A fraction that is not zero: its last digit says so.
_SOME = join(".", repeat(_DIGIT, 0, _FRACTION_DIGITS - 1), characters((49, 57)))


def whole_numbers(least: int, most: int) -> Language:
    """The whole numbers from `least` to `most`; without a bound give -LARGEST and LARGEST."""
    options: list[Language] = []
    if least < 0:
        options.append(join("-", _digits(max(1, -most), -least)))
    if most >= 0:
        options.append(_digits(max(0, least), most))
    return Choice(tuple(options))


def decimal_numbers(least: int, most: int, *, open_least: bool, open_most: bool) -> Language:
    """Numbers between two whole bounds; an open bound is not itself among them."""
    options: list[Language] = []
    if most > 0:
        options.append(_magnitudes(max(0, least), most, open_least and least >= 0, open_most))
    if least < 0:
        bound = max(0, -most)
        negative = _magnitudes(bound, -least, open_most or bound == 0, open_least)
        options.append(join("-", negative))
    zero_is_bound = least == 0 and open_least or most == 0 and open_most
    if least <= 0 <= most and not zero_is_bound:
        options.append(text("0"))
    return Choice(tuple(options))


def _magnitudes(low: int, high: int, open_low: bool, open_high: bool) -> Language:
    """Numbers from `low` to `high`, 0 <= low."""
    options: list[Language] = []
    if low < high:
        options.append(join(str(low), _SOME))
        if low + 1 < high:
            options.append(join(_digits(low + 1, high - 1), optional(_FRACTION)))
    if not open_low and (low < high or low == high and not open_high):
        options.append(text(str(low)))
    if not open_high and low < high:
        options.append(text(str(high)))
    return Choice(tuple(options))


def _digits(low: int, high: int) -> Language:
    """The whole numbers from `low` to `high`, 0 <= low, without leading zeros."""
    options: list[Language] = []
    while low <= high:
        last = min(high, 10 ** len(str(low)) - 1)
        options.append(_equally_long(str(low), str(last)))
        low = last + 1
    return Choice(tuple(options))


def _equally_long(low: str, high: str) -> Language:
    if low == high:
        return text(low)
    if low[0] == high[0]:
        return join(low[0], _equally_long(low[1:], high[1:]))
    rest = len(low) - 1
    first, last = int(low[0]), int(high[0])
    options: list[Language] = []
    if rest and int(low[1:]):
        options.append(join(low[0], _equally_long(low[1:], "9" * rest)))
        first += 1
    if rest and int(high[1:]) != 10**rest - 1:
        options.append(join(high[0], _equally_long("0" * rest, high[1:])))
        last -= 1
    if first <= last:
        full = join(characters((48 + first, 48 + last)), repeat(_DIGIT, rest, rest))
        options.append(full)
    return any_of(*options)
