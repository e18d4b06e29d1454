"""The shared memory of a run: blocks, how they are laid out, and what lies in them."""
