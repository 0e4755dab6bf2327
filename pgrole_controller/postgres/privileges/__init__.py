"""Privileges in one database: reading, changing and watching them."""
