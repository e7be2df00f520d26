"""Bulk bytes for learners over HTTP, with the learner's own secret: code and checkpoints in, pieces of files out.

The frames of the socket carry what is small and must be prompt; this carries what is large and may be resumed.
"""
