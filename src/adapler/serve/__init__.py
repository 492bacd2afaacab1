"""A server of one classifier: requests gathered into batches, everything bounded, the wire of text-embeddings-inference."""
