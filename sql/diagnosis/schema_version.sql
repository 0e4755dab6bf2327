-- Which version of schema pgrole is installed in this database, and how many parts had it then?
SELECT i.version, i.parts FROM pgrole.installation AS i LIMIT 1
