"""Large transfers of learners over HTTP, authenticated by the learner's secret: code, checkpoints and results.

The socket carries small, urgent frames; these requests carry what is large and can be resumed.
"""
