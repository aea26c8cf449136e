"""Make the demo's tokenizer: Gemma's pipeline and control ids, a small vocabulary of its own.

text --" " becomes "▁"--> BPE with byte fallback --> ids;   ids --> pieces --> bytes --> text
"""

import json
import random
import shutil
import sys
from pathlib import Path

from tasks import TASKS
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

VOCAB_SIZE = 1024
PAD, EOS, BOS, UNK, MASK, TURN, END_OF_TURN = 0, 1, 2, 3, 4, 105, 106
# The ids that Gemma 4 gives these tokens; image and audio tokens lie beyond this vocabulary there.
CONTROL_IDS = {
    "<pad>": PAD,
    "<eos>": EOS,
    "<bos>": BOS,
    "<unk>": UNK,
    "<mask>": MASK,
    "<|image>": 5,
    "<image|>": 6,
    "<|image|>": 7,
    "<|audio>": 8,
    "<audio|>": 9,
    "<|audio|>": 10,
    "<|video|>": 11,
    "<|tool>": 46,
    "<tool|>": 47,
    "<|tool_call>": 48,
    "<tool_call|>": 49,
    "<|tool_response>": 50,
    "<tool_response|>": 51,
    '<|"|>': 52,
    "<|think|>": 98,
    "<|channel>": 100,
    "<channel|>": 101,
    "<|turn>": TURN,
    "<turn|>": END_OF_TURN,
}
NEWLINE_ID = 107
EXAMPLES_PER_TASK = {
    "story": 3000,
    "unknown": 3000,
    "turns": 3000,
    "system": 3000,
    "thinking": 2000,
    "gap": 1500,
}

CONFIG = {
    "tokenizer_class": "GemmaTokenizer",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "padding_side": "left",
    "clean_up_tokenization_spaces": False,
    "model_max_length": 4096,
    "add_bos_token": True,
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "image_token": "<|image|>",
    "sot_token": "<|turn>",
    "eot_token": "<turn|>",
    "soc_token": "<|channel>",
    "eoc_token": "<channel|>",
}


def sample_text(seed: int = 0) -> list[str]:
    """Text of every task, as the merges should see it."""
    rng = random.Random(seed)
    texts = ["user\n", "model\n", "system\n", "thought\n"] * 500
    for task, draw in TASKS.items():
        for _ in range(EXAMPLES_PER_TASK.get(task, 1000)):
            example = draw(rng)
            answer = example.answer.replace("<|channel>", "\n").replace("<channel|>", "\n")
            texts += [message["content"] for message in example.messages] + [answer]
    return texts


def learn_merges(texts: list[str], pieces: int) -> tuple[list[str], list[list[str]]]:
    """Vocabulary and merges inside words; digits, punctuation and newlines stay single."""
    learner = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split("▁", "merged_with_next"),
            pre_tokenizers.Punctuation("isolated"),
        ]
    )
    printable = {chr(code) for code in range(33, 127)}
    alphabet = sorted(
        {character for text in texts for character in text} - {" "} | printable | {"▁"}
    )
    trainer = trainers.BpeTrainer(
        vocab_size=pieces, initial_alphabet=alphabet, show_progress=False, special_tokens=[]
    )
    learner.train_from_iterator(texts, trainer)
    model = json.loads(learner.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), model["merges"]


def make_tokenizer() -> Tokenizer:
    """The tokenizer with every id placed."""
    byte_pieces = [f"<0x{value:02X}>" for value in range(256)]
    room = VOCAB_SIZE - len(CONTROL_IDS) - len(byte_pieces)
    pieces, merges = learn_merges(sample_text(), room)
    ids = {**CONTROL_IDS, "\n": NEWLINE_ID}
    free = [id_ for id_ in range(VOCAB_SIZE) if id_ not in set(ids.values())]
    new = byte_pieces + [piece for piece in pieces if piece not in ids]
    ids |= dict(zip(new, free, strict=False))
    ids |= {f"<unused{id_}>": id_ for id_ in free[len(new) :]}

    bpe = models.BPE(
        vocab=ids,
        merges=[tuple(merge) for merge in merges],
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    control = sorted(CONTROL_IDS, key=CONTROL_IDS.__getitem__)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in control]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos>:1 $B:1", special_tokens=[("<bos>", BOS)]
    )
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def save(folder: Path) -> None:
    """Write the three tokenizer files of a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    shutil.copy(Path(__file__).with_name("chat_template.jinja"), folder)


if __name__ == "__main__":
    save(Path(sys.argv[1]))
