"""The command line: ``python -m luthier_client list``; LUTHIER_URL and LUTHIER_TOKEN say where and who.

Exit codes: 0 done, 1 refused or not found (the reason on stderr), 2 not a command.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from luthier_client.client import Client, ClientError

JOB_HELP = "its id, the beginning of one, or a name (the newest job that has it)"
FILTERS = ("tenant", "state", "owner", "tag", "opportunistic", "q")
COLUMNS = ("id", "name", "phase", "tenant", "owner", "created_at")


def main(arguments: Sequence[str] | None = None, client: Client | None = None) -> int:
    """Run one command. client: by default one with the variables of the environment."""
    options = parser().parse_args(arguments)
    try:
        run(options, client or Client())
    except ClientError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:  # `| head` has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    top = argparse.ArgumentParser(prog="luthier_client", description="Jobs on a Luthier installation.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, words in (("submit", "submit a job"), ("validate", "check a spec, without submitting it")):
        one = commands.add_parser(name, help=words)
        one.add_argument("spec", help="file of the spec, YAML or JSON; - is standard input")
        one.add_argument("--tenant", help="default: yours, if you have one")
    listing = commands.add_parser("list", help="list jobs, the newest first")
    for name in ("tenant", "state", "owner", "tag", "q"):
        listing.add_argument(f"--{name}")
    listing.add_argument("--opportunistic", choices=("true", "false"), help="these alone, or all others")
    listing.add_argument("--json", action="store_true")
    for name, words in (
        ("show", "show a job"),
        ("events", "list what happened to a job"),
        ("halt", "save and stop a job"),
        ("cancel", "end a job"),
        ("delete", "delete a job that has ended"),
    ):
        one = commands.add_parser(name, help=words)
        one.add_argument("job", help=JOB_HELP)
        one.add_argument("--json", action="store_true")
    for name, words in (("resume", "continue a halted job"), ("clone", "submit a job again")):
        one = commands.add_parser(name, help=words)
        one.add_argument("job", help=JOB_HELP)
        one.add_argument("--checkpoint", type=int, metavar="N", help="from this one")
        one.add_argument("--json", action="store_true")
    logs = commands.add_parser("logs", help="print a learner's log")
    logs.add_argument("job", help=JOB_HELP)
    logs.add_argument("--learner", type=int, default=0, metavar="RANK")
    logs.add_argument("--attempt", type=int, metavar="N", help="default: the newest")
    logs.add_argument("--tail", type=int, metavar="N", help="only the last lines")
    logs.add_argument("--follow", action="store_true", help="until everything is printed")
    results = commands.add_parser("results", help="download a job's results as a zip")
    results.add_argument("job", help=JOB_HELP)
    results.add_argument("--to", type=Path, metavar="FILE", help="default: <id>-results.zip")
    return top


def run(options: argparse.Namespace, client: Client) -> None:
    """Run the command and print what it returns. Raises ClientError."""
    name, job = options.command, getattr(options, "job", "")
    if name in ("submit", "validate"):
        _send(options, client)
    elif name == "list":
        asked = {key: getattr(options, key) for key in FILTERS}
        _table(list(client.items("/jobs", **asked)), options.json)
    elif name == "show":
        _show(client.find(job), options.json)
    elif name == "events":
        events = list(client.items(f"/jobs/{client.find(job)['id']}/events"))
        _print_events(events, options.json)
    elif name == "delete":
        client.delete(job)
    elif name == "logs":
        where = {"learner": options.learner, "attempt": options.attempt, "tail": options.tail}
        for line in client.lines(job, **where, follow=options.follow, note=_note):
            print(line["text"], flush=options.follow)
            if line.get("cut"):
                _note(f"Line {line['n']} is longer: {line['cut']} more characters are not shown.")
    elif name == "results":
        _download(options, client)
    else:
        chosen = getattr(options, "checkpoint", None)
        body = {} if chosen is None else {"checkpoint": chosen}
        _show(client.act(job, name, body), options.json)


def _send(options: argparse.Namespace, client: Client) -> None:
    try:
        spec = sys.stdin.buffer.read() if options.spec == "-" else Path(options.spec).read_bytes()
    except OSError as error:
        raise ClientError(f"{options.spec}: {error.strerror}") from error
    kind = "application/json" if options.spec.endswith(".json") else "application/yaml"
    tenant = options.tenant or client.tenant()
    if options.command == "submit":
        print(client.submit(tenant, spec, kind)["id"])
        return
    found = client.validate(tenant, spec, kind)
    for each in [*found["errors"], *found["warnings"]]:
        print(f"{each['path']}: {each['message']}")
    if not found["valid"]:
        raise ClientError("The spec has errors.")
    print(found["now"]["message"])


def _download(options: argparse.Namespace, client: Client) -> None:
    job = client.find(options.job)["id"]
    target = options.to or Path(f"{job}-results.zip")
    partial = target.with_name(target.name + ".part")  # what has the name that was asked for is complete
    try:
        with partial.open("wb") as into:
            client.raw("GET", f"/jobs/{job}/results.zip", into=into)
        partial.replace(target)
    except OSError as error:
        raise ClientError(f"{target}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    print(target)


def _table(jobs: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(jobs))
        return
    rows = [COLUMNS, *([_visible(str(job[name])) for name in COLUMNS] for job in jobs)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(COLUMNS))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _show(job: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(job))
        return
    print(f"{job['id']}  {_visible(job['name'])}  {job['phase']}")
    if message := job["reason"]["message"]:
        print(_visible(message))
    print(f"actions: {', '.join(job['allowed_actions']) or 'none'}")


def _print_events(events: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(events))
        return
    for each in events:
        print(f"{each['n']:>4}  {each['at']}  {each['code']}  {_visible(each['message'])}")


def _note(text: str) -> None:
    print(f"[{text}]", file=sys.stderr)


def _visible(text: str) -> str:
    """Others' names and messages cannot steer the terminal."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


if __name__ == "__main__":
    sys.exit(main())
