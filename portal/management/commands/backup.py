"""`manage.py backup DIR`: a copy of the running installation."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from portal.backup.contents import MANIFEST, BackupError
from portal.backup.making import make
from portal.management.database_command import DatabaseCommand


class Command(DatabaseCommand):
    help = "Copy the running installation into a new folder: database, stored files, keys."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, help="a new or empty folder")

    def handle(self, *args: Any, folder: Path, **options: Any) -> None:
        try:
            made = make(folder.resolve(), self.stdout.write)
        except (BackupError, OSError) as error:
            raise CommandError(str(error)) from error
        size = f"{made.blob_bytes / 1024**3:.1f} GiB"
        self.stdout.write(
            f"{folder} has {made.jobs:,} jobs and {made.blobs:,} files ({size}), as of {made.made_at}."
        )
        if made.keys_in:
            self.stdout.write(f"It lacks the keys of {' and '.join(made.keys_in)}: keep them, too.")
        kept = (settings.EMBEDDED.secret_key.name, settings.EMBEDDED.secrets_keys.name)
        keys = [name for name in kept if (folder / name).exists()]
        if keys:
            self.stdout.write(f"It has {' and '.join(keys)}: keep it as safe as the installation.")
        if made.missing:
            raise CommandError(
                f"{made.missing_shown} {MANIFEST} lists them all. The backup can be restored without them. If they were"
                " removed while this ran, set LUTHIER_BLOB_RETENTION_H to more hours than a backup takes."
            )
