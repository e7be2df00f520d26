"""How fast elastic gangs train at each size, and how slots are divided among them. Pure: no clock, no I/O."""
