"""Run the checks and the suites in order and end with one summary line. `make test` and .ci/run call this.

everyday  every test without a marker (fault, cluster, browser, bench), on up to four cores
long      adds the slow forms of all suites (LUTHIER_LONG=1), and drives a whole Chromium instead of its headless shell
checks    the checks and the unit tests of the scripts only
Without an argument: checks, scripts, everyday, fault, cluster and browser. Other arguments are passed to pytest.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
BIN = Path(sys.executable).parent
SHELL = "chromium-headless-shell"  # the same engine without windows, profiles and services: half the processor time
WHOLE = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHECKS = (
    ("format", [str(BIN / "ruff"), "format", "--check", "--quiet", "."]),
    ("lint", [str(BIN / "ruff"), "check", "--quiet", "."]),
    ("templates", [str(BIN / "djhtml"), "--tabwidth", "2", "--check", "templates"]),
    ("words", [sys.executable, "tools/words.py"]),
    ("types", [str(BIN / "mypy")]),
    ("layers", [str(BIN / "lint-imports"), "--no-logo"]),
    ("scripts", [sys.executable, "tools/front_end.py", "types"]),
    ("migrations", [sys.executable, "-W", "ignore", "manage.py", "makemigrations", "--check", "--dry-run",
                    "--verbosity", "0", "--settings", "portal.settings.test"]),
)  # fmt: skip
# These suites mostly wait. Two files at a time, each with its own platforms and clusters, are faster so on two cores.
IN_PAIRS = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
SLOWEST = ("--durations=12", "--durations-min=5")  # each run says where its time went


def main() -> int:
    arguments = sys.argv[1:]
    if arguments == ["checks"]:
        with tempfile.TemporaryDirectory() as folder:
            return closing_code(run_checks() + script_suite(Path(folder)))
    only_everyday = arguments[:1] == ["everyday"]
    long = arguments[:1] == ["long"]
    extra = arguments[1:] if only_everyday or long else arguments
    started = time.monotonic()
    failed = [] if only_everyday else run_checks()
    with tempfile.TemporaryDirectory() as folder:
        reports = Path(folder)
        if not only_everyday:
            failed += script_suite(reports)
        cores = str(min(os.cpu_count() or 1, 4))
        env = {"LUTHIER_LONG": "1"} if long else {}
        failed += suite("everyday", ["-n", cores, *extra], reports, env)
        if not only_everyday:
            if shutil.which("pgbouncer") is None:
                install_package("pgbouncer")
            browser = find_browser(long)
            chromium = {"CHROMIUM": browser} if browser else {}
            failed += suite("fault", [*IN_PAIRS, *marked("fault", extra)], reports, env)
            failed += cluster_suite(extra, reports, env | chromium)
            failed += browser_suite(extra, reports, env | chromium)
        print(closing_line(reports, time.monotonic() - started), flush=True)
    return closing_code(failed)


def closing_code(failed: list[str]) -> int:
    """The exit status, after naming what failed."""
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run_checks() -> list[str]:
    """The checks that need no running server; all of them, so that one run reports every failure."""
    failed = []
    for name, command in CHECKS:
        print(f"Checking {name} ...", flush=True)
        if subprocess.call(command, cwd=ROOT) != 0:
            failed.append(name)
    return failed


def suite(name: str, arguments: list[str], reports: Path, env: dict[str, str] | None = None) -> list[str]:
    """One pytest run. Code 5 (nothing collected) is no failure: a selection may leave a suite empty."""
    print(f"\nSuite: {name}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={reports / name}.xml", *SLOWEST, *arguments]
    # pytest-xdist needs every process to collect the same tests in the same order, sets among their parameters or not.
    fixed = {"PYTHONHASHSEED": "0"}
    environment = {**fixed, **os.environ, **(env or {})}
    # Images set it. Here hundreds of processes load the same sources, and each would compile them.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    code = subprocess.call(command, cwd=ROOT, env=environment)
    return [] if code in (0, 5) else [name]


def marked(name: str, extra: list[str]) -> list[str]:
    """Arguments for the tests with this marker, of all files that have some: to read the others costs seconds.

    What was asked for may name files of its own.
    """
    files = sorted(path for path in TESTS.rglob("test_*.py") if f"mark.{name}" in path.read_text())
    return ["-m", name, *(extra or map(str, files))]


def script_suite(reports: Path) -> list[str]:
    """The unit tests of the TypeScript sources, on Node's own runner."""
    print("\nSuite: scripts", flush=True)
    command = [sys.executable, "tools/front_end.py", "tests", str(reports / "scripts.xml")]
    return [] if subprocess.call(command, cwd=ROOT) == 0 else ["scripts"]


def cluster_suite(extra: list[str], reports: Path, env: dict[str, str]) -> list[str]:
    """Builds first what all of its tests need: a build shows its progress here, and nowhere in one of two processes.

    A selection builds only what it needs, in the one process that runs it. An existing cluster needs nothing.
    """
    if extra or "LUTHIER_TEST_KUBECONFIG" in os.environ:
        return suite("cluster", ["-n", "0", *marked("cluster", extra)], reports, env)
    if subprocess.call([sys.executable, "-m", "tools.kube", "build", "--tests"], cwd=ROOT) != 0:
        return ["cluster"]
    return suite("cluster", [*IN_PAIRS, *marked("cluster", [])], reports, env)


def browser_suite(extra: list[str], reports: Path, env: dict[str, str]) -> list[str]:
    if "CHROMIUM" not in env:
        print(
            "\nSuite: browser, not run: no Chromium here. Install it, or name one with CHROMIUM=...",
            flush=True,
        )
        return []
    return suite("browser", [*IN_PAIRS, *marked("browser", extra)], reports, env)


def find_browser(long: bool) -> str | None:
    """The one that is named, else the first choice; what is not here is installed from Debian, where we may."""
    if named := os.environ.get("CHROMIUM"):
        return named if Path(named).exists() else sys.exit(f"CHROMIUM names no file: {named}")
    choices = (*WHOLE, SHELL) if long else (SHELL, *WHOLE)
    if shutil.which(choices[0]) is None:
        install_package(choices[0])
    if not any(map(shutil.which, choices)):
        install_package(WHOLE[0])
    return next(filter(None, map(shutil.which, choices)), None)


def install_package(name: str) -> None:
    """A package of Debian, where we may install it."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    print(f"\nInstalling {name} ...", flush=True)
    quiet = {"env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, "stdout": subprocess.DEVNULL}
    subprocess.call(["apt-get", "update", "-qq"], **quiet)
    subprocess.call(["apt-get", "install", "-y", "-qq", "--no-install-recommends", name], **quiet)


def closing_line(reports: Path, seconds: float) -> str:
    """pytest's closing line, for the sum of all suites."""
    total = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for report in reports.glob("*.xml"):
        root = ElementTree.parse(report).getroot()
        for run in root.iter("testsuite"):  # pytest counts its tests
            for key in total:
                total[key] += int(run.get(key, 0))
        for case in root.findall("testcase"):  # Node lists them without a suite around them
            total["tests"] += 1
            total["failures"] += case.find("failure") is not None
            total["skipped"] += case.find("skipped") is not None
    passed = total["tests"] - total["failures"] - total["errors"] - total["skipped"]
    counts = {
        "failed": total["failures"],
        "passed": passed,
        "skipped": total["skipped"],
        "errors": total["errors"],
    }
    words = ", ".join(f"{number} {word}" for word, number in counts.items() if number) or "no tests ran"
    return f"\n{f' {words} in {seconds:.2f}s ':=^100}"


if __name__ == "__main__":
    sys.exit(main())
