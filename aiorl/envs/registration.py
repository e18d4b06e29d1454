"""Gymnasium's names for our tasks; entry points are strings, so that nothing heavy is imported here."""

PENDULUM_SWINGUP = "aiorl/PendulumSwingup-v0"


def register_envs() -> None:
    """Register every task with Gymnasium; calling it again does nothing.

    Gymnasium calls it inside the namespace "aiorl" where it loads plug-ins; elsewhere call it by hand.
    """
    from gymnasium.envs.registration import register, registry

    if PENDULUM_SWINGUP in registry:
        return
    register(
        id=PENDULUM_SWINGUP,
        entry_point="aiorl.envs.pendulum.single:PendulumSwingupEnv",
        vector_entry_point="aiorl.envs.pendulum.env:PendulumSwingupVectorEnv",
        max_episode_steps=200,
    )
