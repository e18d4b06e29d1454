"""The collector: steps envs with a copy of the policy into its replay shard, or into rollout slots."""
