"""Tables and figures from plain numbers; this room never opens a model."""
