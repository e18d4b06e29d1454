"""A torque-limited pendulum that must swing up: the smallest task of the family."""
