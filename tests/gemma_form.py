"""Gemma 4's form for tests: its control tokens, a chat template, answers and what they mean."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import mlx_diffusiongemma
from mlx_diffusiongemma.text import Tokenizer

DEMO = Path(mlx_diffusiongemma.__file__).parent / "demo"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

# A template of our own in the form of Gemma 4's: a system turn for instructions, thinking and
# tools; tool results inside the model's turn; thoughts stripped from the history.
TEMPLATE = r"""
{%- macro quoted(value) -%}
  {%- if value is string -%}<|"|>{{ value }}<|"|>{%- else -%}{{ value | tojson }}{%- endif -%}
{%- endmacro -%}
{%- macro fields(mapping) -%}
  {%- for key, value in mapping | dictsort -%}
    {{ key }}:{{ quoted(value) }}{%- if not loop.last -%},{%- endif -%}
  {%- endfor -%}
{%- endmacro -%}
{%- macro answer(text) -%}
  {%- for piece in text.split('<channel|>') -%}{{ piece.split('<|channel>')[0] }}{%- endfor -%}
{%- endmacro -%}
{{ bos_token }}
{%- set system = messages[0] if messages[0].role == 'system' else none -%}
{%- set thinking = enable_thinking is defined and enable_thinking -%}
{%- if thinking or tools or system -%}
  {{ '<|turn>system\n' }}
  {%- if thinking -%}{{ '<|think|>\n' }}{%- endif -%}
  {%- if system -%}{{ system.content | trim }}{%- endif -%}
  {%- for tool in tools or [] -%}
    {{ '<|tool>declaration:' + tool.function.name + '{description:' }}
    {{- quoted(tool.function.description) + '}<tool|>' }}
  {%- endfor -%}
  {{ '<turn|>\n' }}
{%- endif -%}
{%- set state = namespace(in_model_turn=false) -%}
{%- for message in messages if message.role != 'system' -%}
  {%- if message.role == 'tool' -%}
    {{ '<|tool_response>response:' + message.name + '{value:' + quoted(message.content) }}
    {{- '}<tool_response|>' }}
  {%- elif message.role == 'assistant' -%}
    {%- if not state.in_model_turn -%}{{ '<|turn>model\n' }}{%- endif -%}
    {%- for call in message.tool_calls or [] -%}
      {{ '<|tool_call>call:' + call.function.name + '{' + fields(call.function.arguments) }}
      {{- '}<tool_call|>' }}
    {%- endfor -%}
    {{ answer(message.content) | trim }}
    {%- set state.in_model_turn = message.tool_calls is defined -%}
    {%- if not state.in_model_turn -%}{{ '<turn|>\n' }}{%- endif -%}
  {%- elif message.role == 'user' -%}
    {{ '<|turn>user\n' + message.content | trim + '<turn|>\n' }}
  {%- else -%}
    {{ raise_exception('no such role') }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and not state.in_model_turn -%}
  {{ '<|turn>model\n' }}
  {%- if enable_thinking is defined and not enable_thinking -%}
    {{ '<|channel>thought\n<channel|>' }}
  {%- endif -%}
{%- endif -%}
"""


def demo_folder(
    folder: Path, *, template: str | None = TEMPLATE, special: tuple[str, ...] = ()
) -> Path:
    """A copy of the demo's tokenizer in `folder`, with this template and these tokens besides."""
    folder.mkdir(exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copy(DEMO / name, folder / name)
    path = folder / "chat_template.jinja"
    path.unlink() if template is None else path.write_text(template)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    added = tokenizer["added_tokens"]
    known = {token["content"] for token in added}
    new = [token for token in special if token not in known]
    for token_id, content in enumerate(new, len(tokenizer["model"]["vocab"])):
        added.append({**added[0], "id": token_id, "content": content})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def token_ids(tokenizer: Tokenizer, spelled: str) -> list[int]:
    """The tokens of a text in which control tokens are spelled out."""
    if not spelled.strip():
        return token_ids(tokenizer, f"{spelled}.")[:-1]
    return tokenizer.encode_prompt(spelled, chat_template=False)[1:]


@dataclass(frozen=True)
class Answer:
    """What a model wrote, and what a reader should get of it."""

    spelled: str
    text: str = ""
    thought: str = ""
    tool_calls: tuple[str, ...] = ()


CALL = 'call:get_weather{city:<|"|>São Paulo<|"|>,days:3}'
THOUGHT = "<|channel>thought\n"
ANSWERS = {
    "plain": Answer("Hello, world!", "Hello, world!"),
    "nothing": Answer(""),
    "only special tokens": Answer("<pad><bos><|think|><pad>"),
    "the word thought": Answer("A thought\nis not a channel.", "A thought\nis not a channel."),
    "begins with the word thought": Answer("thought\nful", "thought\nful"),
    "ordinary angle brackets": Answer("a <b> c | <i>d</i> <|x|>", "a <b> c | <i>d</i> <|x|>"),
    "thought and answer": Answer(
        f"{THOUGHT}Add two\nand two.\n<channel|>It is 4.", "It is 4.", "Add two\nand two.\n"
    ),
    "empty thought": Answer(f"{THOUGHT}<channel|>Hi.", "Hi."),
    "empty thought without a line break": Answer("<|channel>thought<channel|>Hi.", "Hi."),
    "thought cut by the budget": Answer(f"{THOUGHT}Let me see", thought="Let me see"),
    "thought cut after its name": Answer("<|channel>thought"),
    "thought of two paragraphs": Answer(f"{THOUGHT}\na\n\nb<channel|>c", "c", "\na\n\nb"),
    "thought without a line break": Answer(
        "<|channel>thought: well<channel|>ok", "ok", "thought: well"
    ),
    "thought after some answer": Answer(f"One. {THOUGHT}Hm.<channel|>Two.", "One. Two.", "Hm."),
    "thought ended by the end of the turn": Answer(f"{THOUGHT}a<turn|>b", "b", "a"),
    "thought ended by a turn": Answer(f"{THOUGHT}a<|turn>model\nb", "b", "a"),
    "turn with the name of a channel": Answer("<|turn>thought\nb", "thought\nb"),
    "two thoughts": Answer(f"{THOUGHT}a<channel|>b{THOUGHT}c<channel|>d", "bd", "ac"),
    "thought opened twice": Answer(f"{THOUGHT}a{THOUGHT}b<channel|>c", "c", "ab"),
    "final channel": Answer(f"{THOUGHT}a<channel|><|channel>final\nb<channel|>c", "bc", "a"),
    "final as a word": Answer("<|channel>final answer\nb<channel|>", "final answer\nb"),
    "content channel": Answer("<|channel>content\nb", "b"),
    "unknown channel": Answer("<|channel>poem\nRoses<channel|> end", "poem\nRoses end"),
    "channel with a longer word": Answer("<|channel>thoughtful words", "thoughtful words"),
    "channel with half a name": Answer("<|channel>thou<channel|>gh", "though"),
    "stray ends": Answer("a<channel|>b<tool_call|>c<tool_response|>d<turn|>e", "abcde"),
    "another turn": Answer("Hi.<turn|>\n<|turn>model\nHo.<|turn>modelling", "Hi.\nHo.modelling"),
    "tool call": Answer(f"<|tool_call>{CALL}<tool_call|>", tool_calls=(CALL,)),
    "tool call in one delta with words": Answer(
        f"Let me look.<|tool_call>{CALL}<tool_call|>Done.", "Let me look.Done.", tool_calls=(CALL,)
    ),
    "two tool calls": Answer(
        f"<|tool_call>{CALL}<tool_call|><|tool_call>call:g{{}}<tool_call|>",
        tool_calls=(CALL, "call:g{}"),
    ),
    "tool call with round brackets and plain quotes": Answer(
        '<|tool_call>call:f("a", {"b": 1})<tool_call|>', tool_calls=('call:f("a", {"b": 1})',)
    ),
    "tool call after a thought": Answer(
        f"{THOUGHT}Look it up.<channel|><|tool_call>{CALL}<tool_call|>",
        thought="Look it up.",
        tool_calls=(CALL,),
    ),
    "tool call within a thought": Answer(
        f"{THOUGHT}a<|tool_call>{CALL}<tool_call|>b<channel|>c", "c", "ab", (CALL,)
    ),
    "tool call cut by the budget": Answer(
        'Well<|tool_call>call:f{a:<|"|>x', "Well", tool_calls=('call:f{a:<|"|>x',)
    ),
    "tool call that never ends, then another": Answer(
        f"<|tool_call>call:f{{<|tool_call>{CALL}<tool_call|>", tool_calls=("call:f{", CALL)
    ),
    "tool call that never ends, then a thought": Answer(
        f"<|tool_call>call:f{{}}{THOUGHT}a<channel|>b", "b", "a", ("call:f{}",)
    ),
    "tool response of its own making": Answer(
        f"<|tool_call>{CALL}<tool_call|>"
        "<|tool_response>response:f{value:7}<tool_response|>It is 7.",
        "response:f{value:7}It is 7.",
        tool_calls=(CALL,),
    ),
    "special tokens between the letters": Answer("a<pad>b<|think|>c<unk>d", "abcd"),
}
