"""Training the demo model: losses fall, a resumed run continues, both passes are right.

These need torch; the text that is trained on is tested in `test_train_demo.py`.
"""

import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[1] / "examples" / "train_demo"
sys.path.insert(0, str(RECIPE))

import make_tokenizer  # noqa: E402


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer.make_tokenizer()


@pytest.fixture(scope="module")
def make_trainer(tokenizer):
    torch = pytest.importorskip("torch", reason="training needs torch: install the `parity` extra")
    from batches import Encoder
    from network import Shape
    from train import Trainer

    torch.set_num_threads(1)
    return lambda: Trainer(Shape(layers="sf"), Encoder(tokenizer), seed=0)


@pytest.mark.parity
def test_repeating_one_step_lowers_both_losses(make_trainer):
    trainer, losses = make_trainer(), []
    for _ in range(6):
        trainer.progress.step = 200  # past the warm-up: the same batch and noise every time
        losses.append(trainer.step(0.0))
    assert losses[-1][0] < 0.9 * losses[0][0]
    assert losses[-1][1] < 0.9 * losses[0][1]


@pytest.mark.parity
def test_a_resumed_run_continues_exactly(make_trainer, tmp_path):
    import torch

    trainer, resumed = make_trainer(), make_trainer()
    trainer.step(0.0)
    trainer.save(tmp_path / "state.pt")
    resumed.load(tmp_path / "state.pt")
    assert resumed.step(0.0) == trainer.step(0.0)
    pairs = zip(resumed.averaged.parameters(), trainer.averaged.parameters(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


@pytest.mark.parity
def test_the_packed_pass_equals_transformers(make_trainer, tokenizer, tmp_path):
    """Logits of the encoder and of two canvases of a padded batch, with self-conditioning."""
    import torch
    import transformers
    from export import export
    from network import CANVAS_LENGTH, Layout, Network

    torch.manual_seed(1)
    network = Network(make_trainer().shape)
    with torch.no_grad():  # as exported: bfloat16, and scalars that differ between the two roles
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.mul_(torch.rand(parameter.shape) + 0.5)
            parameter.copy_(parameter.bfloat16().float())
    make_tokenizer.save(tmp_path / "tokenizer")
    export(network, tmp_path / "tokenizer", tmp_path / "checkpoint")
    model, loading = transformers.DiffusionGemmaForBlockDiffusion.from_pretrained(
        tmp_path / "checkpoint", dtype=torch.float32, output_loading_info=True
    )
    assert not loading["missing_keys"] and not loading["unexpected_keys"]

    length, vocab = 40, network.shape.vocab_size
    layout = Layout(prompt_length=length, clean_canvases=1, canvases=2)
    clean = torch.randint(0, vocab, (3, layout.clean_length))
    valid = torch.ones_like(clean, dtype=torch.bool)
    valid[0, :7] = False
    canvas = torch.randint(0, vocab, (3, 2 * CANVAS_LENGTH))
    previous = torch.randn(3, 2 * CANVAS_LENGTH, vocab) * 3
    with torch.no_grad():
        clean_hidden, hidden, _ = network(clean, valid, canvas, layout, previous)
        got, causal = network.head(hidden), network.head(clean_hidden)
        for number in range(2):
            end = length + number * CANVAS_LENGTH
            part = slice(number * CANVAS_LENGTH, (number + 1) * CANVAS_LENGTH)
            want = model(
                input_ids=clean[:, :end],
                attention_mask=valid[:, :end].long(),
                decoder_input_ids=canvas[:, part],
                decoder_attention_mask=torch.nn.functional.pad(
                    valid[:, :end].long(), (0, CANVAS_LENGTH), value=1
                ),
                self_conditioning_logits=previous[:, part],
            )
            torch.testing.assert_close(got[:, part], want.logits, rtol=0, atol=2e-4)
        head = torch.tanh(model.lm_head(want.encoder_last_hidden_state) / 30) * 30
        torch.testing.assert_close(causal[valid][:20], head[valid][:20], rtol=0, atol=2e-4)
