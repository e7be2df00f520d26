"""Is this installation alive, is it ready, and what is wrong with it: /healthz, /readyz and `manage.py doctor`."""
