-- Sum up how runs ended and how long they had waited, in steps of %(step)s since %(since)s.
-- The histogram is summed bucket by bucket: a subscript is read in place, where unnest would make 48 rows of each.
-- Locks: none. Role: operator, worker.
SELECT date_bin(%(step)s::interval, minute, %(since)s::timestamptz) AS at,
       sum(succeeded)::bigint, sum(retried)::bigint, sum(failed)::bigint,
       ARRAY[sum(waits[1]), sum(waits[2]), sum(waits[3]), sum(waits[4]), sum(waits[5]), sum(waits[6]),
                 sum(waits[7]), sum(waits[8]), sum(waits[9]), sum(waits[10]), sum(waits[11]), sum(waits[12]),
                 sum(waits[13]), sum(waits[14]), sum(waits[15]), sum(waits[16]), sum(waits[17]), sum(waits[18]),
                 sum(waits[19]), sum(waits[20]), sum(waits[21]), sum(waits[22]), sum(waits[23]), sum(waits[24]),
                 sum(waits[25]), sum(waits[26]), sum(waits[27]), sum(waits[28]), sum(waits[29]), sum(waits[30]),
                 sum(waits[31]), sum(waits[32]), sum(waits[33]), sum(waits[34]), sum(waits[35]), sum(waits[36]),
                 sum(waits[37]), sum(waits[38]), sum(waits[39]), sum(waits[40]), sum(waits[41]), sum(waits[42]),
                 sum(waits[43]), sum(waits[44]), sum(waits[45]), sum(waits[46]), sum(waits[47]), sum(waits[48])]::bigint[]
  FROM salon_jobs_task_minute
 WHERE minute >= %(since)s::timestamptz
 GROUP BY 1
