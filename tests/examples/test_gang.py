"""Two learners train one network: they meet, halt after the same step, resume together, and fail together."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.examples.programs import Program

STEPS = 200


class Learners:
    """A gang of two as the platform starts it: one folder per learner, one meeting place per attempt."""

    def __init__(self, folder: Path) -> None:
        self.ranks = [Program(folder / str(rank), "gang-numpy", "sklearn", ["train.py"]) for rank in (0, 1)]

    def start(self, step_s: float = 0.002) -> list[subprocess.Popen[str]]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for rank, program in enumerate(self.ranks):
            program.environment = {
                "LUTHIER_RANK": str(rank),
                "NUM_LEARNERS": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "STEPS": str(STEPS),
                "STEP_S": str(step_s),
            }
        return [program.start() for program in reversed(self.ranks)][::-1]

    def run(self, halt_when: Callable[[], bool] | None = None, halt_rank: int = 0) -> list[str]:
        """Run an attempt to its end, with a halt requested of one learner only; return what each printed.

        The steps are slow where a halt is requested, so that a delayed halt still finds them running.
        """
        processes = self.start(0.1 if halt_when else 0.002)
        while halt_when and not halt_when() and all(process.poll() is None for process in processes):
            time.sleep(0.005)
        if halt_when:
            (self.ranks[halt_rank].state / "halt").write_text("{}")
        printed = [process.communicate(timeout=100)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], printed
        return printed

    def scores(self) -> list[dict[str, object]]:
        return [
            json.loads((program.folder / "result" / f"score-{rank}.json").read_text())
            for rank, program in enumerate(self.ranks)
        ]


def test_both_learners_end_with_the_same_network_which_has_learned(tmp_path: Path) -> None:
    gang = Learners(tmp_path)
    gang.run()
    first, second = gang.scores()
    assert first == second
    assert float(str(first["accuracy"])) > 0.9
    assert all(program.finished for program in gang.ranks)


def test_halt_of_either_learner_stops_both_after_the_same_step_and_resumes_to_the_same_bits(
    tmp_path: Path,
) -> None:
    straight, halted = Learners(tmp_path / "straight"), Learners(tmp_path / "halted")
    straight.run()
    for halt_rank, until in ((0, 10), (1, 30)):
        printed = halted.run(
            lambda until=until: any(p["step"] >= until for p in halted.ranks[0].reports()), halt_rank
        )
        steps = [re.search(r"halted after step (\d+)", text)[1] for text in printed]  # type: ignore[index]
        assert steps[0] == steps[1]
        assert not any(program.finished for program in halted.ranks)
    printed = halted.run()
    assert all(f"resumed at step {steps[0]}" in text for text in printed)
    assert halted.scores() == straight.scores()


def test_learner_that_dies_takes_the_other_with_it_and_says_so(tmp_path: Path) -> None:
    gang = Learners(tmp_path)
    first, second = gang.start(0.1)
    while not gang.ranks[0].reports():
        assert first.poll() is None
        time.sleep(0.005)
    second.kill()
    printed = first.communicate(timeout=60)[0]
    second.communicate()
    assert first.returncode == 1
    assert "rank 0: lost another learner" in printed
