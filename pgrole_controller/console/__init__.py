"""The command `pgrole-controller console`: a read-only web application over PgRoles and PgServers."""
