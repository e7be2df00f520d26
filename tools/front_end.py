"""Bundle the front end. Replaced by the real build once package.json stands."""
