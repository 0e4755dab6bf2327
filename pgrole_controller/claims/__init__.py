"""The command `pgrole-controller claims`: shows administrators which object owns which role, and changes it."""
