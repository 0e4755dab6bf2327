"""Mutation testing by hand: seeded one-line faults, each with the tests that must find it. See CONTRIBUTING.md."""
