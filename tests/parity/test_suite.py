"""The suites of the parity kit: what they hold, how large a trace can get, how it is thinned."""

import numpy as np
import pytest
from recordings import tiny_folder
from small_traces import tiny_inputs

from mlx_diffusiongemma.config import read_config, read_generation_config
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.parity.layout import PASSES, kept
from mlx_diffusiongemma.parity.ours import OurModel
from mlx_diffusiongemma.parity.recording import largest, log_sum_exp, record
from mlx_diffusiongemma.parity.suite import DEFAULT, SMALL, estimate, find_suite, inputs_of
from mlx_diffusiongemma.parity.trace_file import write_trace
from mlx_diffusiongemma.released import released_config, released_generation


@pytest.mark.parametrize(
    ("length", "most", "expected"),
    [(1, 4, [0]), (3, 4, [0, 1, 2]), (7, 3, [0, 3, 6]), (10, 1, [0]), (4, 4, [0, 1, 2, 3])],
)
def test_kept_indices_are_spread_and_hold_both_ends(length, most, expected):
    assert kept(length, most).tolist() == expected


def test_the_default_suite_of_the_released_model_stays_below_200_megabytes():
    parts = estimate(DEFAULT, released_config(), released_generation())
    assert 40e6 < sum(parts.values()) < 200e6
    assert parts["layers"] > parts["generations"] > 0


def test_a_trace_is_no_larger_than_its_estimate(tmp_path):
    folder = tiny_folder("small_window")
    trace = record(OurModel.open(folder, str(folder)), tiny_inputs("small_window"))
    size = write_trace(tmp_path / "trace", trace)
    parts = estimate(SMALL, read_config(folder), read_generation_config(folder))
    assert sum(array.nbytes for array in trace.arrays.values()) < sum(parts.values())
    assert size < sum(parts.values()) + 100_000  # the names of the arrays


def test_the_long_case_goes_past_the_window_and_the_short_one_does_not():
    for window in (8, 32, 1024):
        assert DEFAULT.prompt_tokens("long", window) > 2 * window
    assert DEFAULT.prompt_tokens("short", 1024) < 1024


def test_the_same_seed_gives_the_same_inputs_and_another_gives_others():
    first, same, other = (tiny_inputs("small_window", seed=seed) for seed in (0, 0, 1))
    for name, array in first.arrays.items():
        assert np.array_equal(array, same.arrays[name])
        assert not np.array_equal(array, other.arrays[name])


def test_random_tokens_are_never_an_images():
    config = read_config(tiny_folder("small_window"))
    tokens = np.concatenate(list(tiny_inputs("small_window").arrays.values()))
    assert config.image_token_ids and not config.image_token_ids & set(tokens.tolist())


def test_recording_on_the_inputs_of_a_trace_repeats_it():
    folder = tiny_folder("middle_window")
    model = OurModel.open(folder, str(folder))
    first = record(model, tiny_inputs("middle_window"))
    again = record(model, inputs_of(first))
    assert first.manifest == again.manifest
    for name, array in first.arrays.items():
        assert np.array_equal(array, again.arrays[name]), name


def test_the_largest_logits_come_best_first_and_ties_by_token():
    logits = np.array([[1.0, 3.0, 3.0, 2.0], [0.0, -1.0, -2.0, 5.0]], np.float32)
    assert largest(logits, 3).tolist() == [[1, 2, 3], [3, 0, 1]]
    assert largest(logits, 9).tolist() == [[1, 2, 3, 0], [3, 0, 1, 2]]


def test_log_sum_exp_of_large_and_small_numbers():
    logits = np.array([[1000.0, 1000.0], [-1000.0, -1000.0]], np.float32)
    assert log_sum_exp(logits) == pytest.approx([1000 + np.log(2), -1000 + np.log(2)])


def test_an_unknown_suite_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="no suite 'huge'") as raised:
        find_suite("huge")
    assert raised.value.hint == "suites: default, small"


def test_the_operations_of_a_pass_come_in_the_order_of_computation():
    prompt, denoise, conditioned = PASSES[:3]
    names = [name for _, name in prompt.operations(1)]
    assert names[:4] == ["embedding", "queries", "keys", "values"]
    assert names[-2:] == ["output", "final_norm"]
    assert [name for layer, name in denoise.operations(2) if layer is None] == [
        *("embedding", "self_conditioning", "final_norm")
    ]
    assert [name for _, name in conditioned.operations(0)][1] == "soft_embedding"
