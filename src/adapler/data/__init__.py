"""Data: tasks, loading, batching, rationales. Never sees a model."""
