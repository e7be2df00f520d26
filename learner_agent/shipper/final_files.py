"""What a program left when it ended: the files of a checkpoint that it saved without a manifest, and its results."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace

from msgspec import structs

from learner_agent.settings import ShipperSettings
from learner_agent.shipper import results
from learner_agent.shipper.checkpoint_steps import step_in_names
from learner_agent.shipper.checkpoint_uploader import CheckpointUploader
from learner_agent.shipper.connection import Connection
from learner_agent.shipper.description import UNRESTORED, JobDescription
from learner_agent.shipper.metrics.log_rules import LogRules, TooSlow
from learner_agent.shipper.outputs import FileSet, NotWhole, gather, restored_folders
from learner_agent.shipper.results import Found
from learner_agent.spool import Spool
from learner_agent.untrusted_files import objects

NOT_RANK_0 = (
    "The files in its CHECKPOINT_DIR are not stored: of a gang that saves without manifests only learner 0's count."
    " Save with training.checkpoint(step, part=training.rank(), of=training.world_size())."
)
"""One set is restored for all learners: one that saves last, or counts steps faster, must not replace the model."""
BESIDE_RESTORED = (
    "The files in its CHECKPOINT_DIR beside {folder}, from which it resumed, are not stored: it ended before its"
    " first save with training.checkpoint was whole, so they may be no checkpoint. A program that imports"
    " learner_agent.training and saves in another way gets them stored if it ends with code 0 and names no folder"
    " step-…."
)


class FinalFiles:
    """Those of one attempt."""

    def __init__(
        self,
        settings: ShipperSettings,
        spool: Spool,
        connection: Connection,
        uploader: CheckpointUploader,
        job: JobDescription,
        rules: LogRules,
        report_slow_rule: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._spool = spool
        self._connection = connection
        self._uploader = uploader
        self._job = job
        self._rules = rules
        self._report_slow_rule = report_slow_rule

    async def store(self) -> None:
        """Store them, the checkpoint first: a resume needs it, and results may be large. What cannot is reported."""
        await self._uploader.upload_new_checkpoints()
        saved = await self._take("implicit", self._implicit_checkpoint)
        if saved is not None:  # here, not in the thread: a rule's time is measured by a signal
            await self._uploader.upload(self._uploader.dated(self._with_step(saved)))
        left = await self._take("results", self._results)
        if left is not None:
            await self._uploader.upload(left)

    async def _take(self, what: str, collect: Callable[[], Found]) -> FileSet | None:
        """The files to store, None if there are none; what people should know about the rest is reported."""
        try:
            found = await asyncio.to_thread(collect)
        except (NotWhole, OSError) as error:
            self._connection.report("error", code=f"{what}_not_kept", message=str(error)[:1000])
            return None
        for code, message in found.notes:
            self._connection.report("error", code=code, message=message)
        return found.files

    def _implicit_checkpoint(self) -> Found:
        """CHECKPOINT_DIR as it is, of a program that saves without manifests, but for what was restored from one that
        saves with them. Raises TooMany."""
        if self._uploader.has_saved:
            return Found()
        folder = self._settings.checkpoint_dir
        restored = restored_folders(folder)
        files = gather(folder, what="implicit", world=self._job.world(), without=restored)
        if files is None or self._was_restored(files):
            return Found()
        # In folders of this name, saves whose manifest was not written yet.
        begun = any(path.startswith("step-") and "/" in path for path, _, _ in files.offer.files)
        if restored and (begun or not self._saves_in_its_own_way()):
            return Found(notes=[("implicit_not_kept", BESIDE_RESTORED.format(folder=restored[0].name))])
        if self._settings.rank:
            return Found(notes=[("implicit_not_kept", NOT_RANK_0)])
        found = Found(files if files.offer.files else None)
        if files.left_out:
            found.notes.append(("implicit_left_out", results.left_out_message(folder.name, files.left_out)))
        return found

    def _saves_in_its_own_way(self) -> bool:
        """Whether files beside a restored checkpoint are a save. Of a program that knows this platform's module and
        fails, they may be what it left before its first save: as the newest checkpoint they would replace the real one.
        """
        ended = self._spool.read("exit") or {}
        return not self._spool.has("imported") or ended.get("code") == 0

    def _was_restored(self, files: FileSet) -> bool:
        """True if these are the files that the attempt began with: nothing was saved since."""
        saved = self._job.read().get("restore")
        entries = objects(saved.get("files")) if isinstance(saved, dict) else []
        began = [(entry.get("path"), entry.get("size"), entry.get("sha256")) for entry in entries]
        return bool(began) and sorted(map(repr, began)) == sorted(map(repr, files.offer.files))

    def _with_step(self, files: FileSet) -> FileSet:
        """The same set at the step that the spec's rule finds in its names. Nothing else says when a program saved."""
        pattern = self._job.read().get("checkpoint_step")
        if not isinstance(pattern, str):
            return files
        try:
            step = step_in_names([path for path, _, _ in files.offer.files], pattern, self._rules.timer)
        except TooSlow:
            self._report_slow_rule(pattern)
            return files
        except (re.error, RecursionError, OverflowError):  # a program may have changed the file since
            return files
        return replace(files, offer=structs.replace(files.offer, step=step))

    def _results(self) -> Found:
        """RESULT_DIR and the files that the spec keeps. Raises TooMany or OSError."""
        return results.collect(
            self._settings.result_dir,
            self._settings.model_dir,
            keep=self._job.strings("keep"),
            into=self._spool.root / "shipper",
            world=self._job.world(),
            stored_before=bool(self._job.read().get("results")),
            unrestored=self._job.strings(UNRESTORED),
        )
