// Preloaded into servers on Node.js, which close connections that were idle for 5 s. The gateway may send a request
// at that moment, and a request that may have been received is not sent again. So idle connections stay open.

const { Server } = require('node:http');

const { listen } = Server.prototype;
Server.prototype.listen = function (...args) {
    this.keepAliveTimeout = 0;
    return listen.apply(this, args);
};
