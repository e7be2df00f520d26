"""The last lines of a start: the address, and the demo's users or how to make the first one."""

from typing import Any


def welcome(url: str, made: dict[str, Any]) -> str:
    """made: the answer of `manage.py prepare`; its passwords are shown once and stored nowhere."""
    lines = ["", f"  Luthier is at  {url}"]
    users: dict[str, dict[str, str]] = made.get("users", {})
    if users:
        lines += ["", "  Passwords of the demo users (shown once; `manage.py demo` sets new ones):"]
        width = max(len(user["password"]) for user in users.values())
        lines += [
            f"    {name:<8}{user['password']:<{width}}  {user['role']}{_of(user['tenant'])}"
            for name, user in users.items()
        ]
    if made.get("hint"):
        lines += ["", f"  {made['hint']}"]
    if made.get("job"):
        lines += [
            "",
            f"  The first job is starting; sign in as alice and watch it at  {url}{made['job']}",
        ]
    elif made.get("job_problem"):
        lines += ["", f"  The example job was not submitted: {made['job_problem']}"]
    return "\n".join([*lines, "", "  Ctrl-C stops everything.", ""])


def _of(tenant: str | None) -> str:
    return f" of {tenant}" if tenant else ""
