-- How many transactions ago did this one begin? One row. $1 text the transaction, 64 bits
SELECT age($1::text::xid8::xid) AS age
