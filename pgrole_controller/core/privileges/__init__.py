"""The privileges of roles: declared, observed, and the changes between them."""
