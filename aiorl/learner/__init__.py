"""The learner: trains on packed batches, or on rollouts, and publishes policies."""
