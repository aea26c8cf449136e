"""The history of a chat as values: edits, numbering, saving and loading."""

import json

import pytest

from mlx_diffusiongemma.cli.conversation import Conversation, Exchange, numbered
from mlx_diffusiongemma.errors import PromptError

TWO = Conversation("Be brief.", (Exchange("a", "A"), Exchange("b", "B")))


def test_messages_alternate_after_the_system_message():
    assert [(m["role"], m["content"]) for m in TWO.messages("c")] == [
        ("system", "Be brief."),
        ("user", "a"),
        ("assistant", "A"),
        ("user", "b"),
        ("assistant", "B"),
        ("user", "c"),
    ]
    assert Conversation().messages() == []


def test_edits_give_new_conversations():
    assert TWO.with_exchange("c", "C").exchanges[2] == Exchange("c", "C")
    assert TWO.before(2) == Conversation("Be brief.", (Exchange("a", "A"),))
    assert len(TWO.exchanges) == 2


@pytest.mark.parametrize("number", [0, 3, -1])
def test_exchanges_are_numbered_from_one(number):
    with pytest.raises(PromptError, match=f"there is no exchange {number}") as raised:
        TWO.before(number)
    assert "1 to 2" in raised.value.hint


def test_the_numbers_shown_are_the_numbers_taken():
    assert numbered(TWO) == [
        ("system", "Be brief."),
        ("1 you", "a"),
        ("1 model", "A"),
        ("2 you", "b"),
        ("2 model", "B"),
    ]


def test_nothing_said_yet():
    with pytest.raises(PromptError, match="nothing has been said yet"):
        Conversation().last()


@pytest.mark.parametrize("conversation", [TWO, Conversation(), Conversation(None, TWO.exchanges)])
def test_what_is_saved_is_loaded(tmp_path, conversation):
    path = tmp_path / "chat.json"
    conversation.save(path)
    assert Conversation.load(path) == conversation
    assert json.loads(path.read_text()) == conversation.messages()


USER, MODEL = {"role": "user", "content": "a"}, {"role": "assistant", "content": "A"}


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ({}, "is not a list of messages"),
        ([USER], "the last message has no answer"),
        ([MODEL, USER], "message 1 is from `assistant`"),
        ([USER, MODEL, MODEL, USER], "message 3 is from `assistant`"),
        ([{"role": "system", "content": "s"}, MODEL, USER], "message 2 is from `assistant`"),
        ([USER, {"role": "assistant"}], "message 2 lacks a role or a text"),
        ([USER, "A"], "message 2 lacks a role or a text"),
        ([{"role": "user", "content": [1]}, MODEL], "message 1 lacks a role or a text"),
    ],
)
def test_a_file_that_is_no_chat_is_named_with_its_first_fault(tmp_path, messages, complaint):
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(messages))
    with pytest.raises(PromptError, match=complaint) as raised:
        Conversation.load(path)
    assert str(path) in str(raised.value) and raised.value.hint


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", 100_000 * b"["], ids=len)
def test_a_file_that_is_not_json(tmp_path, content):
    path = tmp_path / "chat.json"
    path.write_bytes(content)
    with pytest.raises(PromptError, match="is not JSON"):
        Conversation.load(path)
