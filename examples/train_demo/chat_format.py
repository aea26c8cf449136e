"""The text the model reads: a conversation in Gemma 4's chat form.

`chat_template.jinja` renders the same text; a test holds the two together.
"""

from collections.abc import Mapping, Sequence

BOS, TURN, END_OF_TURN = "<bos>", "<|turn>", "<turn|>"
THINK, CHANNEL, END_OF_CHANNEL = "<|think|>", "<|channel>", "<channel|>"


def render(messages: Sequence[Mapping[str, str]], *, thinking: bool = False) -> str:
    """The prompt up to the place where the model's answer begins."""
    turns = list(messages)
    parts = [BOS]
    has_system = bool(turns) and turns[0]["role"] in ("system", "developer")
    if thinking or has_system:
        content = turns.pop(0)["content"].strip() if has_system else ""
        parts.append(f"{TURN}system\n{THINK + chr(10) if thinking else ''}{content}{END_OF_TURN}\n")
    for message in turns:
        is_model = message["role"] in ("assistant", "model")
        content = without_thoughts(message["content"]) if is_model else message["content"].strip()
        parts.append(f"{TURN}{'model' if is_model else message['role']}\n{content}{END_OF_TURN}\n")
    parts.append(f"{TURN}model\n")
    return "".join(parts)


def without_thoughts(content: str) -> str:
    """A reply as it stands in the history: what its thought channels held is gone."""
    parts = [part.split(CHANNEL)[0] for part in content.split(END_OF_CHANNEL)]
    return "".join(parts).strip()
