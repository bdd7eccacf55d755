-- Sum the statistics of each task since %(last)s ago.
-- The histograms are summed bucket by bucket, as in runs_over_time.sql.
-- Locks: none. Role: worker, operator.
SELECT task, sum(succeeded), sum(retried), sum(failed), sum(cancelled), sum(snoozed), sum(released), sum(rescued),
       sum(duration_s),
       ARRAY[sum(durations[1]), sum(durations[2]), sum(durations[3]), sum(durations[4]), sum(durations[5]), sum(durations[6]),
             sum(durations[7]), sum(durations[8]), sum(durations[9]), sum(durations[10]), sum(durations[11]), sum(durations[12]),
             sum(durations[13]), sum(durations[14]), sum(durations[15]), sum(durations[16]), sum(durations[17]), sum(durations[18]),
             sum(durations[19]), sum(durations[20]), sum(durations[21]), sum(durations[22]), sum(durations[23]), sum(durations[24]),
             sum(durations[25]), sum(durations[26]), sum(durations[27]), sum(durations[28]), sum(durations[29]), sum(durations[30]),
             sum(durations[31]), sum(durations[32]), sum(durations[33]), sum(durations[34]), sum(durations[35]), sum(durations[36]),
             sum(durations[37]), sum(durations[38]), sum(durations[39]), sum(durations[40]), sum(durations[41]), sum(durations[42]),
             sum(durations[43]), sum(durations[44]), sum(durations[45]), sum(durations[46]), sum(durations[47]), sum(durations[48])]::bigint[],
       sum(wait_s),
       ARRAY[sum(waits[1]), sum(waits[2]), sum(waits[3]), sum(waits[4]), sum(waits[5]), sum(waits[6]),
             sum(waits[7]), sum(waits[8]), sum(waits[9]), sum(waits[10]), sum(waits[11]), sum(waits[12]),
             sum(waits[13]), sum(waits[14]), sum(waits[15]), sum(waits[16]), sum(waits[17]), sum(waits[18]),
             sum(waits[19]), sum(waits[20]), sum(waits[21]), sum(waits[22]), sum(waits[23]), sum(waits[24]),
             sum(waits[25]), sum(waits[26]), sum(waits[27]), sum(waits[28]), sum(waits[29]), sum(waits[30]),
             sum(waits[31]), sum(waits[32]), sum(waits[33]), sum(waits[34]), sum(waits[35]), sum(waits[36]),
             sum(waits[37]), sum(waits[38]), sum(waits[39]), sum(waits[40]), sum(waits[41]), sum(waits[42]),
             sum(waits[43]), sum(waits[44]), sum(waits[45]), sum(waits[46]), sum(waits[47]), sum(waits[48])]::bigint[]
  FROM salon_jobs_task_minute
 WHERE minute >= date_trunc('minute', now() - %(last)s::interval)
 GROUP BY task
 ORDER BY task
