"""Every tolerance of the test suite: how far two computations of the same number may lie apart.

The parity recordings are float32 on both sides; logits there have a standard deviation near 1.
"""

# Largest absolute error against transformers, by what is compared. Rounding alone makes about
# 1e-5; the smallest of the faults in tests/parity/mutants.py makes 3e-2.
PARITY = {
    "logits": 2e-4,
    "hidden": 2e-4,
    "weights": 2e-4,
    "keys": 2e-4,
    "values": 2e-4,
    "experts": 0,  # tokens that are routed to another set of experts
}

# Entropy in nats of temperature-scaled logits, along a whole generation; rounding makes 2e-4.
REPLAYED_ENTROPY = 2e-3

# Largest error against mlx-vlm, as a share of the largest logit, both in float32; we measure 4e-7.
QUANTIZED_RELATIVE = 1e-3

# Largest error of a packed model against the model of the numbers it stands for, as a share of the
# largest value, both in float32; we measure 2e-6.
DEQUANTIZED = 2e-5

# Relative error of a routing weight of the Metal kernels against plain MLX, both in float32. Of
# this, 4e-6 is MLX's exp on a CPU for scores 80 below the best.
ROUTING_WEIGHTS = 1e-5

# Largest error of an entropy of the Metal kernel against float64, in nats.
KERNEL_ENTROPY = 1e-5

# The same of plain MLX on a CPU for the released vocabulary; we measure 1.1e-5. With rows added up
# in one go it is 2e-3.
PLAIN_ENTROPY = 3e-5

# Relative error of what a Metal kernel stores against plain MLX in float32 on the same inputs: a
# sum that is rounded to the dtype, and its norm that is rounded once more.
KERNEL_ROUNDING = {"float32": 4e-6, "float16": 2.0**-10, "bfloat16": 2.0**-7}

# Largest error of a product with packed experts by a Metal kernel against plain MLX in float32 on
# the same packed numbers, as a share of the largest; we measure a third of these.
KERNEL_PRODUCTS = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2}

# The same in half precision, as a share of the standard deviation. Random weights amplify
# rounding; we measure a third of these, and unrelated numbers make 1.4.
HALF_PRECISION = {"float16": 0.1, "bfloat16": 0.5}

# Logits after reading a conversation turn by turn against reading it in one go, as a share of the
# largest logit, in float32.
REREAD_LOGITS = 1e-5

# Largest error of an operation in a dtype, on any device, against float32 on the CPU, as a share of
# the largest number; the operations round after every step.
ON_ANOTHER_DEVICE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}

# How far sums over a vocabulary of 262,144 may lie apart whatever they come to: entropies, in nats,
# and the bound on what survivors leave out, which MLX's CPU back-end adds up one after another.
LONG_SUMS = {"logit_statistics": 1e-5, "survivors": 1e-3}
