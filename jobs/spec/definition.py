"""The one definition of a job spec: a JSON Schema (draft 2020-12) that the validator itself interprets.

What JSON Schema cannot say carries an ``x-`` keyword: ``x-help`` (what to write instead), ``x-unit``
(duration or memory, whose ``x-minimum`` and ``x-maximum`` are quantities), ``x-code`` (error code for a
value that does not match). Rules over several fields are in ``rules.py``.
"""

from __future__ import annotations

from typing import Any

from gpu_scheduler.clusters import base
from gpu_scheduler.model import Level, Priority, Topology
from jobs.spec import quantities
from jobs.spec.paths import MAX_PATH_CHARS
from tenants import images, secret_names

API_VERSION = "luthier/v1"
SCHEMA_ID = "https://luthier.invalid/schema/job/v1"
"""A name, not an address: the schema is served by each installation at /api/v1/schema/job."""

PLACEMENTS = ("pack", "spread")
TOPOLOGY_LEVELS = tuple(level.value for level in Level)
TOPOLOGIES = tuple(str(Topology(level, required)) for required in (True, False) for level in Level)
"""Every value of topology, as one text."""
PRIORITIES = tuple(level.name.lower() for level in Priority)

MAX_NAME_CHARS = 100
MAX_LEARNERS = 1024
MAX_BATCH = 1 << 24
MAX_GPUS = 64
MAX_CPUS = 512
MAX_RESTARTS = 100
MAX_COMMAND_CHARS = 8192
MAX_ENV_BYTES = 32 * 1024
MAX_SECRETS = 50
MAX_CODE_BYTES = 512 * 1024
MAX_PATTERN_CHARS = 500
MAX_METRIC_RULES = 20
MAX_OPPORTUNISTIC_GRACE = "5m"
"""Of an opportunistic job, for which others wait while it saves."""
MAX_REQUIREMENTS, MAX_REQUIREMENT_CHARS = 200, 500
PYTHON_VERSIONS = base.PYTHON_VERSIONS
RUNTIME_KEYS = ("framework", "python", "image")
"""What a job runs in: exactly one of them is given."""
MAX_SETUP, MAX_SETUP_CHARS = 10, 2000

SLUG = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
PROJECT = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
DEFAULT_PROJECT = "default"
"""The project of a job that names none, in a tenant that has one of this name."""
SLUG_HELP = "lowercase letters and digits, with . _ - in between"
# One line, no control, zero-width or direction-changing character, no leading or trailing space.
ONE_LINE = (
    r"^(?!\s)[^\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\ufeff\ufff9-\ufffb]+(?<!\s)$"
)
ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
UPLOAD_ID = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"

DEFAULTS: dict[str, Any] = {
    "tags": [],
    "resources": {"learners": 1, "gpus": 0, "cpus": 1, "memory": "4Gi"},
    "placement": "pack",
    "priority": "normal",
    "opportunistic": False,
    "data": [],
    "checkpoint": {"every": "10m", "keep": 3, "grace": "60s"},
    "keep": [],
    "metrics": [],
    "env": {},
    "max_restarts": 0,
}


def json_schema() -> dict[str, Any]:
    """Return the published schema: a fresh copy, safe to change."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Luthier job",
        "description": "One training job: its code, its learners and what they need.",
        "type": "object",
        "required": ["apiVersion", "name", "command"],
        "additionalProperties": False,
        "properties": {
            "apiVersion": {"const": API_VERSION, "description": "Version of this format."},
            **_identity(),
            **_program(),
            **_needs(),
            **_course(),
        },
        "oneOf": [{"required": [key]} for key in RUNTIME_KEYS],
    }


def _identity() -> dict[str, Any]:
    return {
        "name": {
            "type": "string",
            "description": "What people call the job; it need not be unique.",
            "minLength": 1,
            "maxLength": MAX_NAME_CHARS,
            "pattern": ONE_LINE,
            "x-help": "one line of visible characters, no leading or trailing space",
        },
        "tags": {
            "type": "array",
            "description": "Labels for finding and grouping jobs.",
            "maxItems": 20,
            "uniqueItems": True,
            "default": DEFAULTS["tags"],
            "items": {
                "type": "string",
                "maxLength": 50,
                "pattern": r"^[A-Za-z0-9][A-Za-z0-9._:/=+-]*$",
                "x-help": "letters, digits and . _ : / = + -, beginning with a letter or digit",
            },
        },
    }


def _program() -> dict[str, Any]:
    return {
        "framework": {
            "type": "string",
            "description": "A runtime of this installation; exactly one of framework, python and image.",
            "maxLength": 63,
            "pattern": SLUG,
            "x-help": SLUG_HELP,
        },
        "image": {
            "type": "string",
            "description": "A container image with tag or digest; only on a cluster that runs container images.",
            "maxLength": images.MAX_REFERENCE,
            "pattern": images.REFERENCE,
            "x-code": "image_not_allowed",
            "x-help": images.REFERENCE_HELP,
        },
        "code": _code(),
        **_environment(),
        "command": {
            "description": "What each learner runs in the code folder: a line for sh -c, several lines as a script"
            " for sh -e, or a list to exec.",
            "oneOf": [
                {"type": "string", "minLength": 1, "maxLength": MAX_COMMAND_CHARS, "pattern": r"\S"},
                {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 256,
                    "items": {"type": "string", "maxLength": MAX_COMMAND_CHARS},
                },
            ],
        },
        "env": {
            "type": "object",
            "description": "Environment variables of the program.",
            "maxProperties": 200,
            "default": DEFAULTS["env"],
            "propertyNames": {"pattern": ENV_NAME},
            "additionalProperties": {"type": ["string", "number", "boolean"], "maxLength": MAX_ENV_BYTES},
        },
        "secrets": {
            "type": "object",
            "description": "Environment variables whose values are secrets: each names a secret of the job's owner or"
            " of the tenant; the owner's own wins.",
            "maxProperties": MAX_SECRETS,
            "propertyNames": {"pattern": ENV_NAME},
            "additionalProperties": {
                "type": "string",
                "pattern": secret_names.PATTERN,
                "x-help": f"the name of a secret, not its value: {secret_names.RULE}",
            },
        },
    }


def _environment() -> dict[str, Any]:
    return {
        "requirements": {
            "description": "Packages on top of the runtime or the plain Python: a list, or file: a file in the code"
            " that lists them. Their versions are chosen once per job.",
            "oneOf": [
                {
                    "type": "array",
                    "maxItems": MAX_REQUIREMENTS,
                    "items": {"type": "string", "minLength": 1, "maxLength": MAX_REQUIREMENT_CHARS},
                },
                {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["file"],
                    "properties": {
                        "file": {
                            "type": "string",
                            "description": "Path of the file in the code folder.",
                            "minLength": 1,
                            "maxLength": MAX_PATH_CHARS,
                        }
                    },
                },
            ],
        },
        "python": {
            "description": "A plain Python of this version, instead of framework; the installation may not have all.",
            "enum": list(PYTHON_VERSIONS),
        },
        "setup": {
            "type": "array",
            "description": "Commands that each learner runs before the program, once per attempt, each by sh -e in the"
            " code folder; one that fails fails the attempt. Their output is part of the log.",
            "maxItems": MAX_SETUP,
            "items": {"type": "string", "minLength": 1, "maxLength": MAX_SETUP_CHARS, "pattern": r"\S"},
        },
    }


def _code() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "The program: small files inline, or an uploaded archive; optional with image.",
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {
            "files": {
                "type": "object",
                "description": "Text files by their path in the code folder.",
                "minProperties": 1,
                "maxProperties": 100,
                "propertyNames": {"minLength": 1, "maxLength": MAX_PATH_CHARS},
                "additionalProperties": {"type": "string"},
            },
            "upload": {
                "type": "string",
                "description": "Id of an uploaded archive.",
                "pattern": UPLOAD_ID,
                "x-help": "the id that the upload returned",
            },
        },
    }


def _needs() -> dict[str, Any]:
    defaults = DEFAULTS["resources"]
    return {
        "resources": {
            "type": "object",
            "description": "What each learner gets; a job needs this for all its learners at once.",
            "additionalProperties": False,
            "default": defaults,
            "properties": {
                "learners": _learners(defaults["learners"]),
                "batch": _range(
                    "Samples in a step over all learners of an elastic job, from which the platform chooses; the"
                    " program reads its choice as LUTHIER_BATCH. Without it the program keeps its own batch.",
                    MAX_BATCH,
                ),
                "gpus": _whole("GPUs per learner; 0 is a CPU job.", 0, MAX_GPUS, defaults["gpus"]),
                "gpu_type": {
                    "type": "string",
                    "description": "GPU type; any if omitted.",
                    "maxLength": 63,
                    "pattern": SLUG,
                    "x-help": SLUG_HELP,
                },
                "cpus": _whole("CPU cores per learner.", 1, MAX_CPUS, defaults["cpus"]),
                "memory": _quantity("memory", "Memory per learner.", "64Mi", "8Ti", defaults["memory"]),
            },
        },
        "distributed": {
            "type": "boolean",
            "description": "Whether learners get the variables by which frameworks find each other (RANK, WORLD_SIZE,"
            " MASTER_ADDR, JAX_*, TF_CONFIG …); if omitted, only jobs with several learners, or a range of them, do.",
        },
        "placement": {
            "description": "pack: as few nodes as possible; spread: as many.",
            "enum": list(PLACEMENTS),
            "default": DEFAULTS["placement"],
        },
        "topology": _topology(),
        "priority": {
            "description": "Which jobs are considered first; a platform admin sets which classes a tenant may use.",
            "enum": list(PRIORITIES),
            "default": DEFAULTS["priority"],
        },
        "opportunistic": {
            "type": "boolean",
            "description": "Whether the job runs only on what no other job can take, whatever its tenant's quota: it is"
            " stopped as soon as another job can start there, and starts again by itself.",
            "default": DEFAULTS["opportunistic"],
        },
        "project": {
            "type": "string",
            "description": "The project of the tenant whose share the job uses; if omitted, the one named default, or"
            " none.",
            "maxLength": 40,
            "pattern": PROJECT,
            "x-help": "the name of a project of the tenant",
        },
        "data": {
            "type": "array",
            "description": "Folders of the installation's data root; each appears as $DATA_DIR/<name>.",
            "maxItems": 20,
            "default": DEFAULTS["data"],
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "path"],
                "properties": {
                    "name": {
                        "type": "string",
                        "description": "Name of the folder below $DATA_DIR.",
                        "maxLength": 63,
                        "pattern": r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9_-])?$",
                        "x-help": "letters and digits, with . _ - in between",
                    },
                    "path": {
                        "type": "string",
                        "description": "Path below the data root, without leading slash.",
                        "minLength": 1,
                        "maxLength": MAX_PATH_CHARS,
                    },
                },
            },
        },
    }


def _learners(default: int) -> dict[str, Any]:
    return {
        "description": "Training processes, started together: their number, or for an elastic job the fewest and the"
        " most, between which the platform changes it while the job runs.",
        "default": default,
        "oneOf": [
            {"type": "integer", "minimum": 1, "maximum": MAX_LEARNERS},
            _range("An elastic job.", MAX_LEARNERS),
        ],
    }


def _topology() -> dict[str, Any]:
    levels = list(TOPOLOGY_LEVELS)
    return {
        "type": "object",
        "description": "How close the learners are to each other: one of the two; anywhere if omitted. A block is"
        " several racks.",
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {
            "required": {"description": "All learners in one of these, or the job waits.", "enum": levels},
            "preferred": {
                "description": "All learners in one of these if they fit, else in the next larger one, else anywhere.",
                "enum": levels,
            },
        },
    }


def _course() -> dict[str, Any]:
    defaults = DEFAULTS["checkpoint"]
    return {
        "checkpoint": {
            "type": "object",
            "description": "How often to save, how many to keep, how long a halt may take.",
            "additionalProperties": False,
            "default": defaults,
            "properties": {
                "every": _quantity(
                    "duration",
                    "Desired time between checkpoints: training.checkpoint_due() says when it has passed.",
                    "1s",
                    "7d",
                    defaults["every"],
                ),
                "keep": _whole("Newest checkpoints kept.", 1, 100, defaults["keep"]),
                "grace": _quantity(
                    "duration",
                    "Time to save on a halt. A program that imports learner_agent.training gets SIGTERM after it and"
                    " SIGKILL after as long again; any other gets SIGTERM at once and SIGKILL after it. Of an"
                    f" opportunistic job {MAX_OPPORTUNISTIC_GRACE} at most.",
                    "1s",
                    "1h",
                    defaults["grace"],
                ),
                "step": {
                    "type": "string",
                    "description": "Regular expression that finds the step of a program's own checkpoint in the names"
                    " of its files: ckpt-(?P<step>\\d+). Without it the step of a checkpoint that has no manifest is"
                    " unknown.",
                    "minLength": 1,
                    "maxLength": MAX_PATTERN_CHARS,
                },
            },
        },
        "keep": {
            "type": "array",
            "description": "Globs of files in the code folder that are results, in addition to those in RESULT_DIR;"
            " ** is any number of folders, and a folder keeps everything in it.",
            "maxItems": 50,
            "uniqueItems": True,
            "default": DEFAULTS["keep"],
            "items": {"type": "string", "minLength": 1, "maxLength": MAX_PATH_CHARS},
        },
        "metrics": {
            "type": "array",
            "description": "Rules that read metrics from printed lines; report() and TensorBoard need none.",
            "maxItems": MAX_METRIC_RULES,
            "default": DEFAULTS["metrics"],
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["pattern"],
                "properties": {
                    "pattern": {
                        "type": "string",
                        "description": "Regular expression with a named group per metric; (?P<step>…) and (?P<time>…)"
                        " say to what step and time a line belongs.",
                        "minLength": 1,
                        "maxLength": MAX_PATTERN_CHARS,
                    }
                },
            },
        },
        "max_restarts": _whole(
            "Restarts after the program's own failures; infrastructure failures never count.",
            0,
            MAX_RESTARTS,
            DEFAULTS["max_restarts"],
        ),
        "time_limit": _quantity(
            "duration",
            "Running time over all attempts, not counting waiting; no limit if omitted.",
            "1s",
            "90d",
        ),
    }


def _whole(description: str, minimum: int, maximum: int, default: int) -> dict[str, Any]:
    bounds = {"minimum": minimum, "maximum": maximum, "default": default}
    return {"type": "integer", "description": description, **bounds}


def _range(description: str, maximum: int) -> dict[str, Any]:
    end = {"type": "integer", "minimum": 1, "maximum": maximum}
    return {
        "type": "object",
        "description": description,
        "additionalProperties": False,
        "required": ["min", "max"],
        "properties": {
            "min": {**end, "description": "The fewest."},
            "max": {**end, "description": "The most."},
        },
    }


def _quantity(
    unit: str, description: str, least: str, most: str, default: str | None = None
) -> dict[str, Any]:
    is_duration = unit == "duration"
    return {
        "type": "string",
        "description": description,
        "pattern": quantities.DURATION_PATTERN if is_duration else quantities.MEMORY_PATTERN,
        "x-unit": unit,
        "x-minimum": least,
        "x-maximum": most,
        "x-help": quantities.DURATION_HELP if is_duration else quantities.MEMORY_HELP,
        **({} if default is None else {"default": default}),
    }
