-- Relation `claim` where schema pgrole exists: all claims.
SELECT c.* FROM pgrole.claim AS c
