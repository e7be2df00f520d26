"""How elastic GPUs are divided by fairness of another power: `goodput_p` beside the platform's `goodput_pf`.

    python -m bench.goodput_p

On a workload of the Pollux artifact at load 1, with what was measured of earlier jobs of the same program. p = 0 is
proportional fairness, which the platform uses; Sia divides with p = -0.5, Pollux with p = -1.

Traces are read from ../shared/traces, or the folder named by --traces.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.elastic import RESTART_S, measure
from bench.record import record
from bench.traces import TRACES
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.policies.sizes import Resizes

WORKLOAD = "pollux/workloads/workload-1.csv"
POWERS = {"goodput_pf": 0.0, "goodput_p -0.5": -0.5, "goodput_p -1": -1.0}
COLUMNS = ("average_s", "p99_h", "restarts")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of the public traces")
    asked = parser.parse_args()
    figures: dict[str, float] = {}
    for name, power in POWERS.items():
        policy = FairShare(resizes=Resizes(cost_s=RESTART_S, power=power))
        row = measure(asked.traces, asked.traces / WORKLOAD, policy, history=True)
        print(name, *(f"{key}={value:,.3f}" for key, value in row.items()), flush=True)
        figures |= {f"{key} {name}": row[key] for key in COLUMNS}
    record("goodput_p", figures, command="python -m bench.goodput_p", details={"columns": COLUMNS})


if __name__ == "__main__":
    main()
