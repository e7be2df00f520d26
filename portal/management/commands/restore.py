"""`manage.py restore DIR`: start from a backup."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from jobs.blobs import BlobError
from jobs.blobs.store import store
from portal.backup.contents import MANIFEST, BackupError
from portal.backup.restoring import restore
from portal.management.database_command import DatabaseCommand
from portal.settings.base import EMBEDDED, ENV
from portal.supervisor.errors import CannotStart
from portal.supervisor.lock import DataLock


class Command(DatabaseCommand):
    help = "Restore a backup into an empty data folder (LUTHIER_DATA) and database, while the platform is stopped."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, help="what `manage.py backup` made")
        parser.add_argument(
            "--take-over",
            action="store_true",
            help="the installation that used this store of files is gone: this one may remove files from it",
        )

    def handle(self, *args: Any, folder: Path, take_over: bool, **options: Any) -> None:
        place = settings.LUTHIER_BLOBS or str(EMBEDDED.data / "blobs")
        EMBEDDED.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = DataLock(EMBEDDED.lock)
        try:
            lock.take()
            restored = restore(
                folder.resolve(), EMBEDDED, database_url=ENV.database_url,
                blobs=None if place.startswith("s3://") else Path(place), place=store(), take_over=take_over,
                say=self.stdout.write,
            )  # fmt: skip
        except (BackupError, BlobError, CannotStart, OSError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Restored {restored.jobs:,} jobs as of {restored.made_at}. Start the platform.")
        if restored.keys_in:
            self.stdout.write(f"It needs the keys that {' and '.join(restored.keys_in)} gave: set the same.")
        if restored.missing:
            self.stdout.write(
                f"{restored.missing_shown} So it was when the backup was made; {MANIFEST} lists them all."
            )
