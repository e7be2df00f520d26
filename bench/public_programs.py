"""Run public training programs as they are, and compare what the platform says of them with what they print.

Each program of ``public_programs.yaml`` is uploaded from a checkout, submitted, halted in the middle, resumed, and
awaited. Then every point of its metrics is compared with the numbers in its raw log, which Python's ``re`` reads here
once more, and the files that its entry names are looked for among its results.

Run: .venv/bin/python -m bench.public_programs CHECKOUTS [--data FOLDER] [--keep-logs FOLDER] [NAME …]

CHECKOUTS has the repositories by owner and name (``karpathy/nanoGPT``). Without it, or without a repository, the
programs are skipped, with a line that says so. FOLDER keeps the runtimes between runs (5 GB with PyTorch).
What was seen of a program replaces its row of the table in docs/public-programs.md.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import re
import sys
import tempfile
import time
import uuid
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import yaml

from examples.data.fetch import fetch
from gpu_scheduler.clusters.local.isolation import SHARED_TMP
from tests.platform import Client, Platform, UnexpectedEnd, running, wait_for

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "public-programs.md"
SHOWN_FILES = 4
AT_ONCE = 2
SCRATCH = "/var/tmp"
END_S = 1_800
SAME_NUMBER = 1e-6
"""Relative: TensorBoard's files have 32 bits a number."""
RESOURCES = {"gpus": 0, "cpus": 1, "memory": "3Gi"}
ENDED = ("COMPLETED", "FAILED", "CANCELED")


@dataclass(frozen=True)
class Program:
    """One entry of the YAML file, which explains the fields."""

    name: str
    checkout: str
    paths: list[str]
    inputs: list[str]
    halt_at: int | None
    files: list[str]
    how: str
    spec: dict[str, Any]
    bars: bool = False
    csv: str = ""
    series: str = ""
    endless: bool = False


@dataclass
class Outcome:
    """What was seen of one program. matched and printed count points."""

    program: Program
    state: str = ""
    matched: int = 0
    printed: int = 0
    halted: str = ""
    repeated: int | None = None
    files: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="?", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--data", type=data_folder, help="data folder of the platform; default: a new one")
    parser.add_argument("--keep-logs", type=Path, help="write what was seen of each program here")
    given = parser.parse_args()
    if given.checkouts is None:
        print("public_programs: skipped, because no folder of checkouts was given")
        return
    chosen = [one for one in programs() if not given.names or one.name in given.names]
    there = [one for one in chosen if (given.checkouts / one.checkout).is_dir()]
    for one in chosen:
        if one not in there:
            print(f"{one.name}: skipped, because {given.checkouts / one.checkout} is missing")
    if not there:
        return
    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        data = (given.data or Path(scratch)).resolve()
        _inputs(data / "datasets", {name for one in there for name in one.inputs})
        with running(data, nodes="node-a:cpu:4") as platform, ThreadPoolExecutor(AT_ONCE) as pool:
            seen = list(
                pool.map(lambda one: _watched(platform, one, given.checkouts, given.keep_logs), there)
            )
    print(*map(row, seen), sep="\n")
    wrong = [f"{one.program.name}: {text}" for one in seen for text in one.wrong]
    print(*wrong, sep="\n")
    PAGE.write_text(with_rows(PAGE.read_text(), seen))
    sys.exit(bool(wrong))


def data_folder(text: str) -> Path:
    """Where the platform keeps its data; not below /tmp, which then would be no program's own."""
    folder = Path(text)
    if folder.resolve().is_relative_to(SHARED_TMP):
        raise argparse.ArgumentTypeError(f"{folder} is below {SHARED_TMP}, which some programs write to")
    return folder


def programs() -> list[Program]:
    """All entries of the YAML file."""
    return [Program(**one) for one in yaml.safe_load((ROOT / "bench" / "public_programs.yaml").read_text())]


def row(outcome: Outcome) -> str:
    """A row of the table in docs/public-programs.md."""
    one = outcome.program
    receipt = outcome.halted or "Not halted."
    repeated = "" if outcome.repeated is None else f" Repeated {outcome.repeated:,} steps."
    files = ", ".join(f"`{path}`" for path in outcome.files[:SHOWN_FILES])
    more = len(outcome.files) - SHOWN_FILES
    return (
        f"| {one.name} ({one.checkout}) | {outcome.state} | {outcome.matched:,} of {outcome.printed:,} |"
        f" {receipt}{repeated} It {one.how}. | {files}{f' and {more} more' if more > 0 else ''} |"
    )


def with_rows(page: str, seen: list[Outcome]) -> str:
    """The page with what was seen in its table, in the order of the YAML file; rows of other programs stay."""
    rows = {text[2:].split(" ", 1)[0]: text for text in re.findall(r"^\| \S+ \(.*$", page, flags=re.M)}
    rows |= {one.program.name: row(one) for one in seen}
    table = "\n".join(rows[one.name] for one in programs() if one.name in rows)
    head, begin, rest = page.partition("<!-- programs -->\n")
    titles, end = "\n".join(rest.split("\n", 2)[:2]), "\n<!-- end -->"
    return f"{head}{begin}{titles}\n{table}{end}{rest.partition(end)[2]}"


def _inputs(root: Path, names: set[str]) -> None:
    """Put the data sets where jobs find them."""
    if names & {"mnist", "mnist-small"}:
        whole = fetch("mnist", root)
        for file in whole.glob("*-ubyte") if "mnist-small" in names else ():
            _shorten(file, root / "mnist-small" / file.name)
    if "text" in names:
        (root / "text").mkdir(parents=True, exist_ok=True)
        pages = sorted((ROOT / "docs").glob("**/*.md"))
        (root / "text" / "input.txt").write_text("\n".join(page.read_text() for page in pages))


def _shorten(file: Path, to: Path) -> None:
    """Keep the first tenth of the entries of a file in MNIST's format: sizes in big-endian words, then bytes."""
    data = file.read_bytes()
    head = 4 + 4 * data[3]
    count = int.from_bytes(data[4:8]) // 10
    each = (len(data) - head) // int.from_bytes(data[4:8])
    to.parent.mkdir(exist_ok=True)
    to.write_bytes(data[:4] + count.to_bytes(4) + data[8:head] + data[head : head + count * each])


def _watched(platform: Platform, program: Program, checkouts: Path, logs: Path | None) -> Outcome:
    outcome = Outcome(program)
    client = platform.client("alice")
    began = time.monotonic()
    try:
        job_id = _submit(client, program, checkouts)
        _halt_and_resume(client, job_id, outcome)
        _end(client, job_id, outcome)
        _compare(client, job_id, outcome)
        _files(client, job_id, outcome)
        if logs is not None:
            _keep(client, job_id, logs / program.name)
    except (AssertionError, OSError, UnexpectedEnd) as error:
        outcome.wrong.append(str(error)[:2_000])
    print(f"{program.name}: {time.monotonic() - began:.0f} s, {outcome.wrong or 'as printed'}", flush=True)
    return outcome


def _submit(client: Client, program: Program, checkouts: Path) -> str:
    spec = {
        "apiVersion": "luthier/v1",
        "name": program.name,
        "code": {"upload": _upload(client, checkouts / program.checkout, program.paths)},
        "resources": RESOURCES,
        "data": [{"name": name, "path": name} for name in program.inputs],
        **program.spec,
    }
    return str(client.submit(spec)["id"])


def _upload(client: Client, checkout: Path, paths: list[str]) -> str:
    """Upload parts of a checkout as they are, and return the upload's id."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for path in paths:
            top = checkout / path
            for file in sorted(top.rglob("*")) if top.is_dir() else [top]:
                if file.is_file():
                    out.write(file, file.relative_to(checkout))
    border = uuid.uuid4().hex
    head = f'--{border}\r\nContent-Disposition: form-data; name="archive"; filename="code.zip"\r\n\r\n'
    body = head.encode() + archive.getvalue() + f"\r\n--{border}--\r\n".encode()
    request = Request(f"{client.url}/api/v1/tenants/{client.tenant}/uploads", data=body, method="POST")
    request.add_header("Authorization", f"Bearer {client.token}")
    request.add_header("Content-Type", f"multipart/form-data; boundary={border}")
    request.add_header("Idempotency-Key", uuid.uuid4().hex)
    with urlopen(request, timeout=60) as response:
        return str(json.loads(response.read())["id"])


def _halt_and_resume(client: Client, job_id: str, outcome: Outcome) -> None:
    """Halt it once it has so many points, and resume it. Nothing, if it is not to be halted."""
    wanted = outcome.program.halt_at
    if wanted is None:
        return

    def has_points() -> bool:
        if client.job(job_id)["state"] in ENDED:
            return True
        return any(one["points"] >= wanted for one in client.get(f"/jobs/{job_id}/metrics")["series"])

    wait_for(has_points, within_s=END_S, every_s=0.5, what=f"{wanted} points of {job_id}")
    answer = client.call("POST", f"/jobs/{job_id}/halt", {})
    assert answer.status == 202, f"it ended before the halt: {client.job(job_id)['reason']}"
    job = client.wait_state(job_id, "HALTED", within_s=180)
    outcome.halted = job["reason"]["message"]
    client.post(f"/jobs/{job_id}/resume")
    wait_for(lambda: client.job(job_id)["state"] in ("PROCESSING", *ENDED), within_s=300, what="the resume")


def _end(client: Client, job_id: str, outcome: Outcome) -> None:
    """Await the job's end; a program that never ends is halted once it has as many points again."""
    wanted = outcome.program.halt_at
    if outcome.program.endless and wanted is not None:

        def has_more() -> bool:
            printed = sum(len(found) for found in _printed(client, job_id, outcome.program)[-1].values())
            return printed >= wanted

        wait_for(has_more, within_s=END_S, every_s=0.5, what=f"points of {job_id} after the resume")
        client.post(f"/jobs/{job_id}/cancel")
    ended = wait_for(
        lambda: job if (job := client.job(job_id))["state"] in ENDED else None, within_s=END_S, what="the end"
    )
    assert ended is not None
    outcome.state = ended["state"]
    if outcome.state != ("CANCELED" if outcome.program.endless else "COMPLETED"):
        outcome.wrong.append(f"{outcome.state}: {ended['reason']['message']}")
    outcome.repeated = client.get(f"/jobs/{job_id}/attempts")["items"][0].get("repeated_steps")


def _compare(client: Client, job_id: str, outcome: Outcome) -> None:
    """Compare each metric's points with what all attempts printed, or wrote into CSV files."""
    attempts = _printed(client, job_id, outcome.program)
    series = {one["name"]: one for one in client.get(f"/jobs/{job_id}/metrics", buckets=2_000)["series"]}
    for name in sorted({name for found in attempts for name in found}):
        wanted = [found.get(name, []) for found in attempts]
        shown = series.get(name)
        if shown is None:
            outcome.printed += sum(map(len, wanted))
            outcome.wrong.append(f"{name}: no points")
            continue
        points = [(step, last) for step, _, _, last in shown["buckets"]]
        outdated = [(step, last) for step, _, _, last in shown["superseded"]]
        if outcome.program.bars:
            expected, got = of_bars(wanted, points + outdated)
        elif shown["axis"] == "order":
            expected, got = in_order(wanted, points, outdated)
        else:
            expected, got = at_steps(wanted), sorted(points) + sorted(outdated)
        same = sum(map(is_same, expected, got))
        outcome.printed += len(expected)
        outcome.matched += same
        if same < max(len(expected), len(got)):
            outcome.wrong.append(
                f"{name}: {same} of {len(expected)} printed, {len(got)} shown ({shown['axis']})"
            )


Points = list[tuple[int | None, float]]


def at_steps(attempts: list[Points]) -> list[Any]:
    """The points of a metric with steps: the newest attempt's counts, then those that it superseded."""
    newest: dict[int, float] = {}
    older = []
    for found in attempts:
        steps = {step: value for step, value in reversed(found) if step is not None}  # the first one counts
        older += [(step, newest[step]) for step in newest.keys() & steps.keys()]
        newest |= steps
    return sorted(newest.items()) + sorted(older)


def in_order(attempts: list[Points], points: Points, outdated: Points) -> tuple[list[Any], list[Any]]:
    """The values of a metric without steps; the newest attempt's are the last of the chart, in their order."""
    newest = [value for _, value in attempts[-1]]
    older = sorted(value for found in attempts[:-1] for _, value in found)
    place = len(points) - len(newest)
    shown = [value for _, value in points]
    return older + newest, sorted(shown[:place] + [value for _, value in outdated]) + shown[place:]


def of_bars(attempts: list[Points], points: Points) -> tuple[list[Any], list[Any]]:
    """Of a progress bar the values that are shown, each of which was drawn, and as many as the chart has."""
    drawn = Counter(value for found in attempts for _, value in found)
    shown = Counter(value for _, value in points)
    return sorted((shown & drawn).elements()), sorted(shown.elements())


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return one[0] == other[0] and is_same(one[1], other[1])
    one, other = float(one), float(other)  # NaN and infinities are strings
    if not math.isfinite(one):
        return str(one) == str(other)
    return abs(one - other) <= SAME_NUMBER * max(1.0, abs(one))


def _printed(client: Client, job_id: str, program: Program) -> list[dict[str, Points]]:
    """Of each attempt, the points of each metric: step (None where there is none) and value."""
    attempts = sorted(one["n"] for one in client.get(f"/jobs/{job_id}/attempts")["items"])
    rules = [re.compile(rule["pattern"]) for rule in program.spec.get("metrics", [])]
    found = []
    for number in attempts:
        if program.csv:
            path = program.csv.format(number - 1)
            text = client.call("GET", f"/jobs/{job_id}/results/{path}").body.decode()
            seen = _rows(text, program.series.format(number - 1))
        else:
            text = client.raw_log(job_id, attempt=number).decode("utf-8", "replace")
            seen = _points(text, rules, with_bars=program.bars)
        points: dict[str, Points] = {}
        for name, step, value in seen:
            points.setdefault(name, []).append((step, value))
        found.append(points)
    return found


def _rows(text: str, prefix: str) -> Iterator[tuple[str, int | None, float]]:
    """The points in a CSV file with one row a step, whose other columns are metrics."""
    for line in csv.DictReader(io.StringIO(text)):
        for name, value in line.items():
            if name != "step" and value:
                yield prefix + name, int(line["step"]), float(value)


def _points(
    text: str, rules: list[re.Pattern[str]], *, with_bars: bool
) -> Iterator[tuple[str, int | None, float]]:
    newest = None
    for line in re.split(r"[\r\n]+" if with_bars else r"\n", text):
        plain = re.sub(r"\x1b\[[0-9;:]*[mK]", "", line)
        for rule in rules:
            if match := rule.search(plain):
                groups: Mapping[str, str | None] = match.groupdict()
                own = groups.get("step")
                newest = int(own) if own else newest
                for name, value in groups.items():
                    if name != "step" and value:
                        yield name, newest, float(value.rstrip(",;%"))


def _files(client: Client, job_id: str, outcome: Outcome) -> None:
    """The results, and whether each can be downloaded with the size that is listed."""
    items = client.get(f"/jobs/{job_id}/results")["items"]
    outcome.files = [f"{one['path']}" for one in items]
    for path in outcome.program.files:
        if path not in outcome.files:
            outcome.wrong.append(f"{path} is not among the results")
    for one in items:
        answer = client.call("GET", f"/jobs/{job_id}/results/{one['path']}", timeout_s=60)
        body = answer.body if isinstance(answer.body, bytes) else None
        if answer.status != 200 or (body is not None and len(body) != one["size"]):
            outcome.wrong.append(f"{one['path']}: {answer.status}, not {one['size']} bytes")


def _keep(client: Client, job_id: str, folder: Path) -> None:
    """Write what the API says of a job, and its logs, to look at."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {
        name: client.get(f"/jobs/{job_id}/{name}") for name in ("events", "attempts", "metrics", "results")
    }
    seen = {"job": client.job(job_id), "checkpoints": client.get(f"/jobs/{job_id}/checkpoints"), **parts}
    (folder / "seen.json").write_text(json.dumps(seen, indent=1))
    for one in parts["attempts"]["items"]:
        (folder / f"log-{one['n']}.txt").write_bytes(client.raw_log(job_id, attempt=one["n"]))


if __name__ == "__main__":
    main()
