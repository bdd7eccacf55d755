// Ends Azurite at once when asked to stop; by itself it would wait for connections that clients keep open.
const { Server } = require("node:http");
const { close } = Server.prototype;
Server.prototype.close = function (...args) {
  const closing = close.apply(this, args);
  this.closeAllConnections();
  return closing;
};
// Also ends it when its parent is gone, for whatever reason: the pipe to standard input closes.
process.stdin.on("end", () => process.kill(process.pid, "SIGTERM")).resume().unref();
