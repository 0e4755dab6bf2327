"""The wiring: sources, the queue, reconcile, start and stop, health."""
