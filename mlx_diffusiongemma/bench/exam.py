"""Examples as a worker is asked them, and its answers as text that can be judged."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlx_diffusiongemma.answer import AnswerStream
from mlx_diffusiongemma.bench.tasks import Example
from mlx_diffusiongemma.config import read_generation_config
from mlx_diffusiongemma.text import Tokenizer


class Exam:
    """The same examples for everybody: prompts as text and as tokens, one tokenizer for all.

    `questions` are what a request says of each example.
    """

    def __init__(self, folder: Path, examples: Sequence[Example], *, max_tokens: int):
        self._examples = examples
        self._tokenizer = Tokenizer.load(folder)
        ends = read_generation_config(folder).eos_token_ids | self._tokenizer.eos_token_ids
        self.questions: list[dict[str, Any]] = [
            {
                "prompt": example.prompt,
                "prompt_ids": self._tokenizer.encode_prompt(example.prompt),
                "eos_token_ids": sorted(ends),
                "max_tokens": max_tokens,
            }
            for example in examples
        ]

    def judge(self, answers: Sequence[Sequence[int]]) -> list[bool]:
        """Whether each answer, token ids in the order of the examples, is right."""
        return [
            example.is_right(self._text(question["prompt_ids"], token_ids))
            for example, question, token_ids in zip(
                self._examples, self.questions, answers, strict=True
            )
        ]

    def _text(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
        answer = AnswerStream(self._tokenizer, (), prompt_ids=prompt_ids)
        answer.add(token_ids)
        answer.finish()
        return answer.text
