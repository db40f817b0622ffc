"""Data, schedules, processes and the training loop; this room knows nothing of kernel shaping."""
