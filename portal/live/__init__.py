"""The websockets: browsers and programs that watch, and learners that report.

Nothing here is the only copy of anything: a socket carries what the store already holds.
"""
