// Runs graphile-worker for the benchmark: setup | bulk N | worker | latency N |
// steady COUNT BATCH RATE START. Run it in the folder it is installed in.
import { appendFileSync } from "node:fs";
import { createRequire } from "node:module";

const { Logger, makeWorkerUtils, run, runMigrations } = createRequire(`${process.cwd()}/`)("graphile-worker");

// What its documentation recommends for throughput: a local queue and batched completion. No line per job is logged.
const preset = {
  worker: {
    connectionString: process.env.DATABASE_URL,
    concurrentJobs: 24,
    maxPoolSize: 25,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
    logger: new Logger(() => (level, message) => {
      if (level === "error" || level === "warning") console.error(message);
    }),
  },
};
const BATCH = 10_000;

const now = () => process.hrtime.bigint();
const tell = (figures) => console.log(JSON.stringify(figures));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function withUtils(work) {
  const utils = await makeWorkerUtils({ preset });
  try {
    await work(utils);
  } finally {
    await utils.release();
  }
}

const actions = {
  async setup() {
    await runMigrations({ preset });
  },
  async bulk(count) {
    await withUtils(async (utils) => {
      await utils.addJobs([{ identifier: "noop", payload: {} }]); // connects and registers the task
      const began = now();
      for (let added = 1; added < count; added += BATCH) {
        const jobs = Array.from({ length: Math.min(BATCH, count - added) }, () => ({ identifier: "noop", payload: {} }));
        await utils.addJobs(jobs);
      }
      tell({ rate: (count - 1) / (Number(now() - began) / 1e9) });
    });
  },
  async worker() {
    const runner = await run({
      preset,
      taskList: {
        noop: () => {},
        mark: ({ added_ns }) => appendFileSync(process.env.BENCHMARK_MARKS, `${added_ns} ${now()}\n`),
      },
    });
    await runner.promise;
  },
  async latency(count) {
    await withUtils(async (utils) => {
      for (let number = 0; number < count; number += 1) {
        await sleep(20 + Math.random() * 40);
        await utils.addJob("mark", { added_ns: String(now()) });
      }
      tell({ added: count });
    });
  },
  async steady(count, batch, rate, startNs) {
    await withUtils(async (utils) => {
      let due = Math.max(startNs, Number(now()));
      for (let added = 0; added < count; added += batch) {
        const pause = (due - Number(now())) / 1e6;
        if (pause > 0) await sleep(pause);
        const payload = { added_ns: String(now()) };
        if (batch === 1) await utils.addJob("mark", payload);
        else await utils.addJobs(Array.from({ length: batch }, () => ({ identifier: "mark", payload })));
        due += ((0.5 + Math.random()) * 1e9 * batch) / rate;
      }
      tell({ added: count });
    });
  },
};

await actions[process.argv[2]](...process.argv.slice(3).map(Number));
