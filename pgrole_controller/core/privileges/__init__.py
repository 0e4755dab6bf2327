"""The privileges of roles: what is declared, what is there, and what to change."""
