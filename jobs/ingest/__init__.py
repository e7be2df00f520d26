"""Learners' frames become rows: observations only. This package never writes an intent and never moves a job.

``writer`` commits the waiting frames of all learners of a process together (``store``, ``learner_update``) and
acknowledges after the commit; ``checkpoints`` receives offers of checkpoints and results; ``intents`` reads what is
requested of learners. Repeats, overlaps and losses are harmless by offset, number or content.
"""
