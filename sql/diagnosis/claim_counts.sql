-- How many claims has each cluster, and how many of them are released? At most 20 clusters.
SELECT
    textsend(pg_catalog."left"(c.cluster, 63)) AS cluster,
    count(*) AS held_or_released,
    count(*) FILTER (WHERE c.released_at IS NOT NULL) AS released
FROM pgrole.claim AS c
GROUP BY c.cluster
ORDER BY 2 DESC, 1
LIMIT 20
