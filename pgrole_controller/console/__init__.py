"""The command `pgrole-controller console`: a read-only web console for PgRoles and PgServers."""
