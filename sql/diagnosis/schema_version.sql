-- Which version of schema pgrole is installed in this database?
SELECT i.version FROM pgrole.installation AS i LIMIT 1
