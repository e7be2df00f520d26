"""Run the suites in order; `make test` calls this."""

import subprocess
import sys

if __name__ == "__main__":
    sys.exit(subprocess.call([sys.executable, "-m", "pytest", "-n", "2", *sys.argv[1:]]))
