"""Starts and watches every process of an embedded installation. Needs no Django, so it is quick and small."""
