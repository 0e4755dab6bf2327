"""The API server: client, watches and stores, writes, Events, leader election."""
