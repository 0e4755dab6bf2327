"""Folds existing privileges into the shortest declaration: for `export`."""
