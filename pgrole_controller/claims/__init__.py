"""The command `pgrole-controller claims`: which object owns which role, for an administrator to see and to change."""
