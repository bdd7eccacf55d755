// Asks the search of the built site, which runs in a worker of the browser: node search.js WORKER INDEX QUERY…
// Writes one JSON line for each query: where its results are, best first.
const fs = require("fs");
const [worker, index, ...queries] = process.argv.slice(2);
let answer;
globalThis.self = { postMessage: (message) => answer(message) };
eval(fs.readFileSync(worker, "utf8"));
const ask = (message) => new Promise((resolve) => { answer = resolve; self.onmessage({ data: message }); });

(async () => {
  const data = JSON.parse(fs.readFileSync(index, "utf8"));
  await ask({ type: 0, data });
  for (const input of queries) {
    const everything = { type: "operator", data: { operator: "and", operands: [] } };
    const filter = { input: everything, aggregation: { input: [] } };
    const reply = await ask({ type: 2, data: { input, filter } });
    console.log(JSON.stringify(reply.data.items.map(({ id }) => data.items[id].location)));
  }
})();
