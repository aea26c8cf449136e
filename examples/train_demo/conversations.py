"""Conversations for the demo: system prompts, several turns, and thinking before the answer.

Each generator returns (messages, answer); the last message is the user's.
"""

import random

import stories
import sudoku
import talk

Messages = list[dict[str, str]]
NEUTRAL_SYSTEM = (
    "You are a helpful assistant.",
    "Be brief.",
    "Be kind.",
    "You are a helpful model.",
)


def user(text: str) -> dict[str, str]:
    """A message of the user."""
    return {"role": "user", "content": text}


def model(text: str) -> dict[str, str]:
    """A message of the model, under the name that chat templates expect."""
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, str]:
    """A system message."""
    return {"role": "system", "content": text}


def any_short(rng: random.Random, *, with_sudoku: bool = True) -> tuple[str, str]:
    """One of the single-turn tasks with an answer of one canvas."""
    kinds = list(talk.SHORT.values()) + ([sudoku_task] if with_sudoku else [])
    return rng.choice(kinds)(rng)


def sudoku_task(rng: random.Random) -> tuple[str, str]:
    """A puzzle of a training grid."""
    puzzle, grid = sudoku.make_puzzle(rng)
    return sudoku.make_prompt(rng, puzzle), sudoku.as_rows(grid)


def with_system(rng: random.Random) -> tuple[Messages, str]:
    """A system prompt that changes the answer, or a neutral one that must not."""
    kind = rng.randrange(6)
    if kind == 0:
        request, answer = rng.choice((talk.small_talk, talk.fact))(rng)
        while len(answer) > 40:
            request, answer = talk.fact(rng)
        return [
            system(rng.choice(("Answer in capitals.", "Use capital letters."))),
            user(request),
        ], answer.upper()
    if kind == 1:
        name = rng.choice(stories.NAMES)
        request = rng.choice((*talk.WHO, "What is your name?", "What is your name?"))
        return [
            system(rng.choice(("Your name is {}.", "You are {}.")).format(name)),
            user(request),
        ], f"I am {name}."
    if kind == 2:
        request, _, word = talk.fact_with_word(rng)
        return [
            system(rng.choice(("Answer with one word.", "Reply with one word."))),
            user(request),
        ], word
    if kind == 3:
        request, _, word = talk.fact_with_word(rng)
        return [system("Answer in JSON."), user(request)], f'{{"answer": "{word}"}}'
    if kind == 4:
        request, answer = talk.addition(rng)
        return [
            system("Answer in JSON."),
            user(request),
        ], f'{{"answer": {answer.rpartition(" ")[2]}}}'
    request, answer = any_short(rng)
    return [system(rng.choice(NEUTRAL_SYSTEM)), user(request)], answer


def several_turns(rng: random.Random) -> tuple[Messages, str]:
    """A last question that needs, or must ignore, what was said before."""
    kind = rng.randrange(6)
    if kind == 0:
        return _introduction(rng)
    if kind == 1:
        request, answer = talk.sorting(rng, most=10)
        return [
            user(request),
            model(answer),
            user(rng.choice(("Now backwards.", "And backwards?"))),
        ], answer[::-1]
    if kind == 2:
        a, b, c = rng.randint(0, 9), rng.randint(0, 9), rng.randint(0, 9)
        first = [user(f"{a} + {b}"), model(f"{a} + {b} = {a + b}")]
        return [
            *first,
            user(rng.choice((f"And {c} more?", f"Add {c} more."))),
        ], f"{a + b} + {c} = {a + b + c}"
    if kind == 3:
        thing, colour = rng.choice(talk.COLOUR_OF)
        other, other_colour = rng.choice([pair for pair in talk.COLOUR_OF if pair[0] != thing])
        capital = thing[0].upper() + thing[1:]
        first = [user(f"What colour is {thing}?"), model(f"{capital} is {colour}.")]
        return [*first, user(f"And {other}?")], f"{other[0].upper()}{other[1:]} is {other_colour}."
    before, reply = talk.small_talk(rng)
    request, answer = any_short(rng)
    return [user(before), model(reply), user(request)], answer


def _introduction(rng: random.Random) -> tuple[Messages, str]:
    """The user tells a name and a favourite colour, then asks for one of them."""
    name, colour = rng.choice(stories.NAMES), rng.choice(stories.COLOURS)
    told = [
        (user(rng.choice((f"My name is {name}.", f"I am {name}."))),
         model(f"Nice to meet you, {name}.")),
        (user(rng.choice((f"I like {colour}.", f"My favourite colour is {colour}."))),
         model(f"{colour[0].upper()}{colour[1:]} is a nice colour.")),
    ]  # fmt: skip
    questions = [
        (rng.choice(("What is my name?", "Who am I?")), f"Your name is {name}."),
        (
            rng.choice(("What is my favourite colour?", "What colour do I like?")),
            f"You like {colour}.",
        ),
    ]
    order = [0, 1] if rng.random() < 0.5 else [1, 0]
    turns = rng.randint(0, 2)
    history = [message for index in order[:turns] for message in told[index]]
    if turns == 0 or rng.random() < 0.15 * (turns == 1):
        request, reply = told[order[turns]]
        return [*history, request], reply["content"]
    question, answer = questions[order[rng.randrange(turns)]]
    return [*history, user(question)], answer


def thinking(rng: random.Random) -> tuple[Messages, str]:
    """A thought in its own channel, then the answer."""
    kind = rng.randrange(4)
    if kind == 0:
        a, b = rng.randint(0, 20), rng.randint(0, 20)
        request = rng.choice(("What is {} + {}?", "{} + {}", "{} + {} =", "{}+{}")).format(a, b)
        thought, answer = f"Add {a} and {b}: {a + b}.", f"{a} + {b} = {a + b}"
    elif kind == 1:
        request, answer = talk.sorting(rng, most=9)
        thought = f"From {answer[0]} to {answer[-1]}."
    elif kind == 2:
        request, answer, word = talk.fact_with_word(rng)
        thought = f"The answer is {word}."
    else:
        request, answer = rng.choice(talk.SMALL_TALK[:1] + talk.SMALL_TALK[3:])
        request, thought = rng.choice(request), "The user is talking to me."
    messages = [user(request)]
    if rng.random() < 0.3:
        messages.insert(0, system(rng.choice(NEUTRAL_SYSTEM)))
    return messages, f"<|channel>thought\n{thought}<channel|>{answer}"
