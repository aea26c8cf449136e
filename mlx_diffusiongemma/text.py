"""Prompts -> token ids, and token ids -> text, with the checkpoint's own tokenizer and template.

    "text" or messages --> checked messages --> chat template --> token ids, one <bos>, no images
    token ids --> bytes of each token, special tokens left out --> UTF-8 --> text

Control tokens are known by their spelling in Gemma 4's vocabulary, never by number. As in every
runtime of these models, a prompt that spells a control token (`<turn|>`) is encoded with that
token: escape or refuse such text before it comes here if whoever wrote it is not to be trusted.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import SPMStreamingDetokenizer
from transformers import AutoTokenizer

from mlx_diffusiongemma.errors import CheckpointError, PromptError

Message = Mapping[str, Any]

CHANNEL_START, CHANNEL_END = "<|channel>", "<channel|>"
TOOL_CALL_START, TOOL_CALL_END = "<|tool_call>", "<tool_call|>"
TOOL_RESPONSE_START, TOOL_RESPONSE_END = "<|tool_response>", "<tool_response|>"
TURN_START, TURN_END = "<|turn>", "<turn|>"
MARKERS = (
    *(CHANNEL_START, CHANNEL_END, TOOL_CALL_START, TOOL_CALL_END),
    *(TOOL_RESPONSE_START, TOOL_RESPONSE_END, TURN_START, TURN_END),
)
_MEDIA = {
    "images are": ("<|image|>", "<|image>", "<image|>"),
    "sound is": ("<|audio|>", "<|audio>", "<audio|>"),
    "videos are": ("<|video|>",),
}
_MEDIA_PARTS = {
    "image": "images are",
    "image_url": "images are",
    "input_image": "images are",
    "audio": "sound is",
    "input_audio": "sound is",
    "video": "videos are",
}

ROLES = ("system", "user", "assistant", "model", "tool")

# Spaces at the start and in a row, byte fallback, joined emoji, a combining mark, blank lines.
_PROBE = "  naïve \u6f22\u5b57 e\u0301 \U0001f469\u200d\U0001f52c \U00010348\n\n\tend "


class Tokenizer:
    """The vocabulary and the chat template of one checkpoint.

    Attributes:
        vocab_size: how many tokens the vocabulary has.
        eos_token_ids: tokens that end an answer, as the tokenizer has it: its end token and the
            end of a turn. A generation_config.json may name more.
        special_token_ids: tokens that are never part of the visible text.
    """

    def __init__(self, folder: Path):
        if not (folder / "tokenizer.json").is_file():
            raise CheckpointError(
                f"{folder} has no tokenizer.json", hint="is the download of the model complete?"
            )
        try:
            # The model's context is checked elsewhere; a limit here only prints a warning.
            self._backend = AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, model_max_length=sys.maxsize
            )
        except Exception as error:  # damaged files fail in transformers in any way
            raise CheckpointError(
                f"the tokenizer in {folder} cannot be read: {error}",
                hint="download the model again",
            ) from error
        self.vocab_size = len(self._backend)
        # mlx-lm knows the bytes of each token. Its own streaming copies the whole text for every
        # token, and turns U+2581 into a space even where bytes spell it.
        tokens = SPMStreamingDetokenizer(self._backend, trim_space=False).tokenmap
        self._bytes = [token.replace("\u2581".encode(), b" ") for token in tokens]
        self._read_special_tokens()
        template = self._backend.chat_template
        self._template = template.get("default") if isinstance(template, dict) else template
        if self.decode(self._encode(_PROBE)) != _PROBE:
            raise CheckpointError(
                f"the tokenizer in {folder} does not give a text back as it was",
                hint="DiffusionGemma needs Gemma's tokenizer, with byte fallback",
            )

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read the tokenizer files in a checkpoint's folder; `CheckpointError` if that fails."""
        return cls(folder)

    def _read_special_tokens(self) -> None:
        added = self._backend.added_tokens_decoder
        special = {token_id for token_id, token in added.items() if token.special}
        markers = {self.id_of(token) for token in MARKERS} - {None}
        ends = {self._backend.eos_token_id, self.id_of(TURN_END)} - {None}
        self.special_token_ids = frozenset(special | markers | {*self._backend.all_special_ids})
        self.eos_token_ids: frozenset[int] = frozenset(ends)
        self._media = {
            token_id: (kind, token)
            for kind, tokens in _MEDIA.items()
            for token in tokens
            if (token_id := self.id_of(token)) is not None
        }

    @property
    def fingerprint(self) -> str:
        """Differs when another vocabulary or chat template would turn a text into other tokens."""
        probe = self._encode(_PROBE + "".join(MARKERS))
        parts = [self._template, self.vocab_size, sorted(map(str, self.special_token_ids)), probe]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def has_chat_template(self) -> bool:
        """Whether the checkpoint brings a chat template."""
        return self._template is not None

    @property
    def supports_thinking(self) -> bool:
        """Whether the chat template can turn thinking on and off."""
        return self._template is not None and "enable_thinking" in self._template

    # Token ids -> text -----------------------------------------------------------------------

    def id_of(self, token: str) -> int | None:
        """The id of the token that is spelled exactly so, None if the vocabulary lacks it."""
        return self._backend.backend_tokenizer.token_to_id(token)

    def bytes_of(self, token_id: int) -> bytes:
        """UTF-8 of one token, often only a part of a character; its spelling if it is special."""
        if 0 <= token_id < len(self._bytes):
            return self._bytes[token_id]
        return "\ufffd".encode()

    @property
    def pad_token_id(self) -> int | None:
        """The token that stands where nothing is said, None if there is none."""
        return self._backend.pad_token_id

    def bytes_by_id(self, count: int) -> list[bytes | None]:
        """UTF-8 of the tokens 0 to `count` - 1; None for special ones and those that are not."""
        known = min(count, len(self._bytes))
        hidden = self.special_token_ids
        texts = [None if i in hidden else self._bytes[i] for i in range(known)]
        return texts + [None] * (count - known)

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of these tokens without special tokens; bytes that are no UTF-8 are U+FFFD.

        Thoughts and tool calls are text like any other here; `answer.AnswerStream` tells them
        apart.
        """
        shown = (self.bytes_of(i) for i in token_ids if i not in self.special_token_ids)
        return b"".join(shown).decode("utf-8", "replace")

    # Text -> token ids -----------------------------------------------------------------------

    def encode_text(self, text: str) -> list[int]:
        """The tokens that write a text as an answer: nothing is put before it or behind it."""
        return self._encode(text)

    # Prompts -> token ids --------------------------------------------------------------------

    def encode_prompt(
        self,
        prompt: str | Sequence[Message],
        *,
        chat_template: bool = True,
        thinking: bool | None = None,
    ) -> list[int]:
        """The token ids that the model reads: one `<bos>` first, ready for its answer.

        A text is one user message. Messages have a `role` out of `ROLES` and a `content`: text,
        or parts `{"type": "text", "text": ...}`, which are joined. Other keys, such as an
        assistant's `tool_calls`, reach the template as they are. `chat_template=False` encodes
        a text as it stands. `thinking=None` leaves thinking to the template's own default.
        Anything the model cannot read is a `PromptError`.
        """
        if not chat_template:
            ids = self._encode(self._plain(prompt, thinking))
            bos = self._backend.bos_token_id
            ids = ids if bos is None or ids[0] == bos else [bos, *ids]
        else:
            ids = self._encode(self._render(self._checked_messages(prompt), thinking))
        for token_id in ids:
            if token_id in self._media:
                kind, token = self._media[token_id]
                raise PromptError(
                    f"{kind} not supported yet: the prompt contains `{token}`",
                    hint="send text only",
                )
        return ids

    def _plain(self, prompt: str | Sequence[Message], thinking: bool | None) -> str:
        if not isinstance(prompt, str):
            raise PromptError("messages need the chat template", hint="send one text without it")
        if thinking:
            raise PromptError("thinking needs the chat template", hint="send the prompt with it")
        if not prompt.strip():
            raise PromptError("the prompt is empty")
        return prompt

    def _checked_messages(self, prompt: str | Sequence[Message]) -> list[dict[str, Any]]:
        if self._template is None:
            raise PromptError(
                "this checkpoint has no chat template",
                hint="use --no-chat-template to send the prompt as it is",
            )
        if isinstance(prompt, Mapping):
            raise PromptError("messages come as a list", hint="put the message into a list")
        if not isinstance(prompt, str | Iterable):
            raise PromptError(
                f"the prompt is a {type(prompt).__name__}",
                hint='a prompt is text, or a list of {"role": ..., "content": ...}',
            )
        given = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        messages = [self._checked(message) for message in given]
        last = messages[-1] if messages else {"role": "user", "content": ""}
        if last["role"] in ("system", "user") and not last["content"].strip():
            raise PromptError("the prompt is empty")
        return messages

    def _checked(self, message: Message) -> dict[str, Any]:
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ROLES:
            raise PromptError(
                f"a message has the role {role!r}", hint=f"roles are {', '.join(ROLES)}"
            )
        if role == "tool" and not any(word in str(self._template) for word in ("'tool'", '"tool"')):
            raise PromptError("this checkpoint's chat template has no tool messages")
        # Gemma 4's template compares with "assistant" and writes "model" itself.
        role = "assistant" if role == "model" else role
        content = message.get("content")
        if content is None and role == "assistant":
            content = ""
        return {**message, "role": role, "content": _joined(content, role)}

    def _render(self, messages: list[dict[str, Any]], thinking: bool | None) -> str:
        if thinking and not self.supports_thinking:
            raise PromptError(
                "this checkpoint's chat template cannot turn thinking on",
                hint="leave thinking (`--thinking`) out",
            )
        # Not mlx-lm's wrapper: it turns thinking on when nobody asked.
        choice: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
        try:
            rendered = self._backend.apply_chat_template(
                messages,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=True,
                **choice,
            )
        except Exception as error:  # a template is a program, and may fail as any other
            raise PromptError(f"the chat template refuses these messages: {error}") from error
        return str(rendered)

    def _encode(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"the prompt is not valid Unicode: {error.reason}", hint="send it as UTF-8"
            ) from error
        return self._backend.encode(text, add_special_tokens=False)


def _joined(content: object, role: str) -> str:
    """The text of a message's content; `PromptError` for anything that is not text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise PromptError(
            f"the content of a {role} message is a {type(content).__name__}",
            hint='content is text, or a list of {"type": "text", "text": ...}',
        )
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(kind, str) and kind in _MEDIA_PARTS:
            raise PromptError(f"{_MEDIA_PARTS[kind]} not supported yet", hint="send text only")
        text = part.get("text") if kind == "text" else None
        if not isinstance(text, str):
            raise PromptError(
                f"a {role} message has a part of type {kind!r} without text",
                hint='parts are {"type": "text", "text": ...}',
            )
        texts.append(text)
    return "".join(texts)
