"""What a role may do, and through what: the answers of `access`."""
