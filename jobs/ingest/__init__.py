"""Learners' frames become rows: observations only. This room never writes a wish and never moves a job.

``writer`` commits what waits from all learners of this process together and acknowledges after the commit;
``files`` takes offers of checkpoints and results; ``intents`` reads what learners must hear. Repeats, overlaps and
losses are harmless by offset, number or content.
"""
