"""A gang that trains one model: JAX's own collectives (gloo over the pods' network) make every step's gradient."""

import json
import os
import sys
import time

import jax

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(
    os.environ["JAX_COORDINATOR_ADDRESS"],
    int(os.environ["JAX_NUM_PROCESSES"]),
    int(os.environ["JAX_PROCESS_ID"]),
)

import numpy as np  # noqa: E402, I001 - not before the start
from jax.experimental.multihost_utils import broadcast_one_to_all, process_allgather  # noqa: E402
from learner_agent import training  # noqa: E402

STEPS, STEP_S, WIDTH = int(sys.argv[1]), float(sys.argv[2]), 64
rank, size = jax.process_index(), jax.process_count()
truth = np.sin(np.arange(WIDTH))

state = np.zeros(WIDTH + 1)  # the weights, and the step
if rank == 0 and (found := training.resume_from()):
    state = np.array(json.loads((found / "state.json").read_text()))
state = np.array(broadcast_one_to_all(state.astype(np.float32)))
weights, step = state[:-1], int(state[-1])
print(f"rank {rank} of {size} begins at step {step}", flush=True)
saved_at = time.monotonic()

while step < STEPS:
    inputs = np.random.default_rng([step, rank]).normal(size=(32, WIDTH)).astype(np.float32)
    error = inputs @ (weights - truth)
    mine = np.append(inputs.T @ error / 32, [np.mean(error**2), float(training.halt_requested())])
    mean = np.array(process_allgather(mine.astype(np.float32))).mean(axis=0)
    weights, step = weights - 0.05 * mean[:WIDTH], step + 1
    training.report(step, total=STEPS, loss=float(mean[WIDTH]))
    halted = mean[-1] > 0
    # Every rank must enter the same collectives, so whether to save depends on what all of them know.
    if rank == 0 and (halted or step == STEPS or time.monotonic() - saved_at > 2):
        with training.checkpoint(step) as folder:
            (folder / "state.json").write_text(json.dumps([float(each) for each in weights] + [step]))
        saved_at = time.monotonic()
    if halted:
        print(f"rank {rank} halts after step {step}", flush=True)
        sys.exit(0)
    time.sleep(STEP_S)

print(f"rank {rank} ends with {float(weights.sum()).hex()}", flush=True)
training.finish()
