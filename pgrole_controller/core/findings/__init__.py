"""What `doctor` finds, and the facts that it judges."""
