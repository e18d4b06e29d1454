"""The learner: trains on packed batches and publishes policies."""
