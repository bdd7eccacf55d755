// Ends Azurite at once when told to: it would wait for connections that clients keep open.
const { Server } = require("node:http");
const { close } = Server.prototype;
Server.prototype.close = function (...args) {
  const closing = close.apply(this, args);
  this.closeAllConnections();
  return closing;
};
// And when whoever started it is gone, however that ended: the pipe to its input closes.
process.stdin.on("end", () => process.kill(process.pid, "SIGTERM")).resume().unref();
