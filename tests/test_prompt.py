"""A prompt becomes the token ids that the checkpoint's own template asks for, or a clear error."""

import json
import logging

import pytest
from gemma_form import DEMO, TEMPLATE, demo_folder, token_ids
from transformers import AutoTokenizer

from mlx_diffusiongemma.errors import PromptError
from mlx_diffusiongemma.text import MARKERS, Tokenizer

USER = {"role": "user", "content": "Sort 3 1 2"}


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    """The demo checkpoint's own tokenizer and template."""
    return Tokenizer.load(DEMO)


@pytest.fixture(scope="module")
def gemma_form(tmp_path_factory) -> Tokenizer:
    """The demo's vocabulary with a template in Gemma 4's form."""
    special = ("<|tool>", "<tool|>", '<|"|>', *MARKERS)
    return Tokenizer.load(demo_folder(tmp_path_factory.mktemp("form") / "t", special=special))


@pytest.fixture
def with_template(tmp_path):
    """Makes a tokenizer with the demo's vocabulary and any template."""
    return lambda template: Tokenizer.load(demo_folder(tmp_path / "t", template=template))


def spelled(tokenizer: Tokenizer, text: str) -> list[int]:
    return [tokenizer.id_of("<bos>"), *token_ids(tokenizer, text)]


# Prompts --------------------------------------------------------------------------------------


CHATS = {
    "user": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "history": [
        USER,
        {"role": "assistant", "content": "1 2 3"},
        {"role": "user", "content": "And 9 8?"},
    ],
}


@pytest.mark.parametrize("messages", CHATS.values(), ids=CHATS)
@pytest.mark.parametrize("which", ["demo", "gemma_form"])
def test_messages_become_what_transformers_makes_of_them(request, which, messages, tmp_path):
    tokenizer = request.getfixturevalue(which)
    folder = DEMO if which == "demo" else demo_folder(tmp_path / "t")
    reference = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert tokenizer.encode_prompt(messages) == reference


def test_a_text_is_one_user_message(gemma_form):
    assert gemma_form.encode_prompt("Sort 3 1 2") == gemma_form.encode_prompt([USER])


def test_the_template_is_rendered_around_the_prompt(gemma_form):
    expected = "<|turn>user\nSort 3 1 2<turn|>\n<|turn>model\n"
    assert gemma_form.encode_prompt([USER]) == spelled(gemma_form, expected)


@pytest.mark.parametrize("prompt", ["Hi", "<bos>Hi"])
@pytest.mark.parametrize("chat_template", [True, False])
def test_a_prompt_begins_with_one_bos(demo, prompt, chat_template):
    ids = demo.encode_prompt(prompt, chat_template=chat_template)
    bos = demo.id_of("<bos>")
    assert ids[0] == bos and ids[1] != bos
    if not chat_template:
        assert ids.count(bos) == 1


def test_without_the_template_a_prompt_stays_as_it_is(demo):
    text = "  two spaces,\n\nthen <|turn>model\n"
    ids = demo.encode_prompt(text, chat_template=False)
    assert "".join(demo.bytes_of(i).decode() for i in ids) == f"<bos>{text}"


def test_a_spelled_control_token_is_that_token(demo):
    assert demo.id_of("<turn|>") in demo.encode_prompt("a<turn|>b", chat_template=False)


def test_the_parts_of_a_message_are_joined_as_they_are(gemma_form):
    parts = [{"type": "text", "text": "Sort "}, {"type": "text", "text": "3 1 2"}]
    message = {"role": "user", "content": parts}
    assert gemma_form.encode_prompt([message]) == gemma_form.encode_prompt([USER])


def test_a_system_message_may_come_in_parts(gemma_form):
    contents = "Be brief.", [{"type": "text", "text": "Be brief."}]
    chats = [[{"role": "system", "content": content}, USER] for content in contents]
    assert gemma_form.encode_prompt(chats[0]) == gemma_form.encode_prompt(chats[1])


def test_model_is_another_word_for_assistant(gemma_form):
    chats = [[USER, {"role": role, "content": "1 2 3"}, USER] for role in ("model", "assistant")]
    assert gemma_form.encode_prompt(chats[0]) == gemma_form.encode_prompt(chats[1])


def test_thoughts_leave_the_history_as_the_template_says(gemma_form):
    thought = {"role": "assistant", "content": "<|channel>thought\nhm<channel|>1 2 3"}
    plain = {"role": "assistant", "content": "1 2 3"}
    ids = [gemma_form.encode_prompt([USER, message, USER]) for message in (thought, plain)]
    assert ids[0] == ids[1]


def test_tool_calls_and_results_reach_the_template(gemma_form):
    call = {"function": {"name": "add", "arguments": {"a": 1, "b": "two"}}}
    chat = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": "add", "content": "3"},
    ]
    assert gemma_form.encode_prompt(chat) == spelled(
        gemma_form,
        "<|turn>user\nSort 3 1 2<turn|>\n<|turn>model\n"
        '<|tool_call>call:add{a:1,b:<|"|>two<|"|>}<tool_call|>'
        '<|tool_response>response:add{value:<|"|>3<|"|>}<tool_response|>',
    )


def test_a_tool_may_return_nothing(gemma_form):
    chat = [USER, {"role": "tool", "name": "add", "content": ""}]
    ids = gemma_form.encode_prompt(chat)
    assert gemma_form.id_of("<tool_response|>") in ids


def test_messages_are_not_changed(gemma_form):
    message = {"role": "model", "content": [{"type": "text", "text": "a"}]}
    before = json.dumps(message)
    gemma_form.encode_prompt([USER, message, USER])
    assert json.dumps(message) == before


def test_a_template_in_the_tokenizer_config_counts(tmp_path, gemma_form):
    folder = demo_folder(tmp_path / "t", template=None)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.has_chat_template
    assert tokenizer.encode_prompt([USER]) == gemma_form.encode_prompt([USER])


def test_the_default_of_several_templates_counts(tmp_path):
    folder = demo_folder(tmp_path / "t", template=None)
    named = [{"name": name, "template": name} for name in ("tool_use", "default")]
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": named}))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.decode(tokenizer.encode_prompt([USER])) == "default"


def test_a_long_prompt_makes_no_noise(demo, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    assert len(demo.encode_prompt("a b " * 6000, chat_template=False)) > 6000
    assert not caplog.records


# Thinking -------------------------------------------------------------------------------------


def test_thinking_is_passed_to_the_template(gemma_form):
    on, off, default = (gemma_form.encode_prompt("Hi", thinking=t) for t in (True, False, None))
    turn = "<|turn>user\nHi<turn|>\n<|turn>model\n"
    assert on == spelled(gemma_form, f"<|turn>system\n<|think|>\n<turn|>\n{turn}")
    assert off == spelled(gemma_form, f"{turn}<|channel>thought\n<channel|>")
    assert default == spelled(gemma_form, turn)


def test_thinking_is_left_to_the_template_unless_asked(with_template):
    tokenizer = with_template(
        "{{ 'on' if enable_thinking is not defined or enable_thinking else 'off' }}"
    )
    assert tokenizer.decode(tokenizer.encode_prompt("Hi")) == "on"
    assert tokenizer.decode(tokenizer.encode_prompt("Hi", thinking=False)) == "off"


def test_thinking_needs_a_template_that_has_it(with_template):
    tokenizer = with_template("{{ messages[0]['content'] }}")
    assert not tokenizer.supports_thinking
    with pytest.raises(PromptError, match="cannot turn thinking on") as error:
        tokenizer.encode_prompt("Hi", thinking=True)
    assert error.value.hint
    assert tokenizer.encode_prompt("Hi", thinking=False) == tokenizer.encode_prompt("Hi")


def test_thinking_needs_the_template_in_use(gemma_form):
    assert gemma_form.supports_thinking
    with pytest.raises(PromptError, match="thinking needs the chat template"):
        gemma_form.encode_prompt("Hi", thinking=True, chat_template=False)


# Prompts that cannot be read ------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        " \n",
        [],
        [{"role": "user", "content": ""}],
        [USER, {**USER, "content": [{"type": "text", "text": " "}]}],
    ],
)
def test_an_empty_prompt_is_an_error(demo, prompt):
    with pytest.raises(PromptError, match="the prompt is empty"):
        demo.encode_prompt(prompt)


def test_an_empty_prompt_is_an_error_without_the_template_too(demo):
    with pytest.raises(PromptError, match="the prompt is empty"):
        demo.encode_prompt("\t", chat_template=False)


@pytest.mark.parametrize(
    "message", [{"role": "robot", "content": "Hi"}, {"content": "Hi"}, "Hi", {"role": None}]
)
def test_an_unknown_role_is_an_error_that_names_it(demo, message):
    role = message.get("role") if isinstance(message, dict) else None
    with pytest.raises(PromptError, match=f"role {role!r}") as error:
        demo.encode_prompt([message])
    assert "assistant" in error.value.hint


def test_a_tool_message_needs_a_template_that_has_it(demo):
    with pytest.raises(PromptError, match="no tool messages"):
        demo.encode_prompt([USER, {"role": "tool", "name": "add", "content": "3"}])


@pytest.mark.parametrize("content", [None, 7, {"type": "text", "text": "a"}, b"a", ["a"], [None]])
def test_content_that_is_no_text_is_an_error(demo, content):
    with pytest.raises(PromptError, match="a user message"):
        demo.encode_prompt([{"role": "user", "content": content}])


@pytest.mark.parametrize(
    ("kind", "what"),
    [("image", "images are"), ("image_url", "images are"), ("audio", "sound is")],
)
def test_an_image_is_an_error_for_now(demo, kind, what):
    message = {"role": "user", "content": [{"type": kind}, {"type": "text", "text": "What?"}]}
    with pytest.raises(PromptError, match=f"^{what} not supported yet"):
        demo.encode_prompt([message])


@pytest.mark.parametrize("token", ["<|image|>", "<|image>", "<image|>"])
@pytest.mark.parametrize("chat_template", [True, False])
def test_a_spelled_image_token_is_an_error_too(demo, token, chat_template):
    with pytest.raises(PromptError, match="^images are not supported yet") as error:
        demo.encode_prompt(f"What is {token}?", chat_template=chat_template)
    assert token in str(error.value)


def test_without_a_template_a_chat_is_an_error_that_says_what_to_do(with_template):
    tokenizer = with_template(None)
    assert not tokenizer.has_chat_template and not tokenizer.supports_thinking
    with pytest.raises(PromptError, match="no chat template") as error:
        tokenizer.encode_prompt("Hi")
    assert "--no-chat-template" in error.value.hint
    assert tokenizer.encode_prompt("Hi", chat_template=False) == spelled(tokenizer, "Hi")


def test_messages_need_the_template(demo):
    with pytest.raises(PromptError, match="messages need the chat template"):
        demo.encode_prompt([USER], chat_template=False)


def test_messages_come_as_a_list(demo):
    with pytest.raises(PromptError, match="messages come as a list"):
        demo.encode_prompt(USER)
    with pytest.raises(PromptError, match="the prompt is a NoneType"):
        demo.encode_prompt(None)


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception('no') }}", "{{ missing.field }}", "{% if %}", "{{ 1 / 0 }}"],
)
def test_what_the_template_refuses_is_an_error(with_template, template):
    with pytest.raises(PromptError, match="the chat template refuses these messages: ."):
        with_template(template).encode_prompt("Hi")
