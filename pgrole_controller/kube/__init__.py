"""The API server: client, reflector and store, status, Events."""
