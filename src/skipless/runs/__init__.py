"""A run from its options to its record: configuration, building, training, searching."""
