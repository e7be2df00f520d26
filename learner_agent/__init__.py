"""The two small processes beside a training program, and what the program may import."""
