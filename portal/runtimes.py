"""The frameworks that come with the source tree, as rows an administrator may change, disable or add to."""

from pathlib import Path

from jobs.models import Runtime
from portal.settings.env import BASE_DIR

FOLDER = BASE_DIR / "examples" / "runtimes"
TITLES = {
    "jax": "JAX",
    "keras": "Keras",
    "plain": "Plain Python",
    "pytorch": "PyTorch",
    "sklearn": "scikit-learn",
    "tensorflow": "TensorFlow",
}


def register_runtimes(folder: Path = FOLDER) -> int:
    """Make a row for each NAME.txt that has none, and return how many. Existing rows are the administrator's."""
    known = set(Runtime.objects.values_list("slug", flat=True))
    fresh = [path for path in sorted(folder.glob("*.txt")) if path.stem not in known]
    for path in fresh:
        slug = path.stem
        title = TITLES.get(slug, slug)
        Runtime.objects.get_or_create(slug=slug, defaults={"title": title, "description": _description(path)})
    return len(fresh)


def _description(lock: Path) -> str:
    """The first line of the comment with which NAME.in begins: what it is, on what it runs, its size."""
    try:
        lines = lock.with_suffix(".in").read_text().splitlines()
    except OSError:
        return ""
    return lines[0].lstrip("# ").strip()[:300] if lines and lines[0].startswith("#") else ""
