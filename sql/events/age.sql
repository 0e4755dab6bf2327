-- How many transactions ago did this one begin? One row. $1 bigint the transaction, 64 bits
SELECT age($1::bigint::text::xid8::xid) AS age
