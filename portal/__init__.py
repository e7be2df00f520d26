"""Pages, REST, websockets, settings and entry points: the composition root."""
