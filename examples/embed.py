"""The smallest run inside a program of your own: watch it, wait for it, use its policy."""

import asyncio
import sys

import aiorl


async def main(run_dir: str, *overrides: str) -> None:
    settings = aiorl.load_settings("sac/pendulum", overrides=["budget.env_steps=20000", *overrides])
    async with aiorl.Run(settings, run_dir=run_dir) as run:
        async for event in run:
            if isinstance(event, aiorl.Progress):
                print(event.record["env_steps"], event.record.get("episode/return_mean"))
    outcome = await run.wait()
    policy = aiorl.load_policy(outcome.run_dir)
    print(outcome.state, policy([1.0, 0.0, 0.0]))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or ["runs/embedded"]))
