"""Every barrier and condition of every kernel is needed: without it, a fault or another result."""

from importlib.resources import files

import emulated
import emulator
import kernel_mutants
import mlx.core as mx
import mutant_launches
import pytest

pytestmark = pytest.mark.emulator

CASES = [
    (kernel, mutant)
    for kernel, guards in kernel_mutants.GUARDS.items()
    for mutant in [*kernel_mutants.barriers(kernel), *guards]
]


def outcome(launch, kernel=None):
    """The outputs, as text in which NaN equals NaN; or the fault."""
    try:
        outputs = emulated.run(launch, kernel=kernel)
    except emulator.MetalError as fault:
        return f"fault: {fault}"
    return [str(output.astype(mx.float32).tolist()) for output in outputs]


@pytest.mark.parametrize(
    ("kernel", "mutant"),
    CASES,
    ids=[f"{kernel.name}: {old}" + f" #{n}" * (n > 1) for kernel, (old, _, n) in CASES],
)
def test_a_mutant_is_noticed(kernel, mutant):
    launch = mutant_launches.launch_of(kernel)
    assert outcome(launch, emulated.changed(kernel, *mutant)) != outcome(launch)


@pytest.mark.parametrize("kernel", kernel_mutants.GUARDS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("schedule", emulator.SCHEDULES)
def test_the_kernel_itself_is_not(kernel, schedule):
    launch = mutant_launches.launch_of(kernel)
    want = [str(o.astype(mx.float32).tolist()) for o in emulated.run(launch)]
    got = [str(o.astype(mx.float32).tolist()) for o in emulated.run(launch, schedule=schedule)]
    assert got == want


def test_a_missing_barrier_is_a_race_at_its_place():
    for kernel in kernel_mutants.GUARDS:
        for mutant in kernel_mutants.barriers(kernel):
            fault = outcome(mutant_launches.launch_of(kernel), emulated.changed(kernel, *mutant))
            assert isinstance(fault, str), (kernel.name, mutant)
            assert "data race" in fault or "uninitialised read" in fault
            assert ".metal:" in fault


def test_every_kernel_has_mutants():
    sources = [path for path in files("mlx_diffusiongemma.metal").iterdir() if path.is_file()]
    bodies = {path.name for path in sources if "// @body\n" in path.read_text()}
    assert {f"{kernel.name}.metal" for kernel in kernel_mutants.GUARDS} == bodies
