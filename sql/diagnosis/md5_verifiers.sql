-- How many roles can log in with an MD5 verifier?
SELECT count(*) AS roles FROM pg_catalog.pg_authid AS r WHERE r.rolcanlogin AND substring(r.rolpassword FOR 3) = 'md5'
