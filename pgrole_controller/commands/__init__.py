"""Commands that look at roles: plan, diff, export, access, history, doctor. Only `approve` writes, to its object."""
