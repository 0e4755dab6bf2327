-- How many roles can log in with an MD5 verifier?
SELECT count(*) AS roles FROM pg_catalog.pg_authid AS r WHERE r.rolcanlogin AND r.rolpassword LIKE 'md5%'
