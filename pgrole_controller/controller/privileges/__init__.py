"""The workers that keep the privileges in each database."""
