"""`manage.py secrets`: which keys encrypt the stored secrets; make a new key; encrypt everything with the newest."""

import sys
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from portal.management.database_command import DatabaseCommand
from portal.settings.secret import new_secrets_key
from tenants import keyring, sealed_rows
from tenants.errors import SecretsUnavailable


class Command(DatabaseCommand):
    help = "Show the keys that encrypt stored secrets, and rotate them. Never prints a secret."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "action",
            nargs="?",
            choices=("status", "rotate", "reencrypt", "new-key"),
            default="status",
            help="status: how many secrets each key encrypts (exit code 1 if a key is missing). rotate: put a new key"
            " before the others in the key file, then encrypt every secret with it. reencrypt: the second half alone,"
            " for keys in LUTHIER_SECRETS_KEYS. new-key: print a new key.",
        )

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        try:
            getattr(self, f"_{action.replace('-', '_')}")()
        except SecretsUnavailable as error:
            self.stderr.write(str(error))
            sys.exit(1)

    def _new_key(self) -> None:
        self.stdout.write(new_secrets_key())

    def _rotate(self) -> None:
        lost = sealed_rows.unreadable()
        if lost:
            raise SecretsUnavailable(
                f"{lost} secrets cannot be decrypted, so nothing was changed. Put their key back into"
                f" {settings.LUTHIER_SECRETS_KEYS.place}, or delete them."
            )
        keyring.add_key()
        self._reencrypt()

    def _reencrypt(self) -> None:
        done = sealed_rows.reencrypt()
        self.stdout.write(f"{done} secrets encrypted with the newest key.")
        self._status()

    def _status(self) -> None:
        ids, uses = keyring.key_ids(), sealed_rows.key_uses()
        self.stdout.write(f"Keys in {settings.LUTHIER_SECRETS_KEYS.place}, newest first:")
        for key_id in ids:
            used = uses.get(key_id, 0)
            note = "" if used or key_id == ids[0] else "  may be removed, once no backup needs it"
            self.stdout.write(f"  {key_id}  {used} secrets{note}")
        if not ids:
            self.stdout.write("  none yet; the first secret makes one")
        missing = {key_id: used for key_id, used in uses.items() if key_id not in ids}
        for key_id, used in missing.items():
            self.stdout.write(f"  {key_id}  {used} secrets  MISSING: they cannot be decrypted")
        if missing:
            sys.exit(1)
