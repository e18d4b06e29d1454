"""The collector: steps envs with a copy of the policy, keeps transitions in its replay shard, packs batches."""
