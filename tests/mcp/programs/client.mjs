// Like client.py, with the TypeScript SDK or the inspector's command line. With the SDK, a call may
// have a timeout in milliseconds. Each request of the inspector is a process; the processes run
// concurrently, since each takes seconds to end.

import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

const [library, transport, target, calls] = process.argv.slice(2);
const command = transport === 'stdio' ? JSON.parse(target) : [];

async function sdk() {
    const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
    const { SSEClientTransport } = await import('@modelcontextprotocol/sdk/client/sse.js');
    const { StdioClientTransport } = await import('@modelcontextprotocol/sdk/client/stdio.js');
    const { StreamableHTTPClientTransport } = await import(
        '@modelcontextprotocol/sdk/client/streamableHttp.js'
    );
    const streams = {
        http: () => new StreamableHTTPClientTransport(new URL(target)),
        sse: () => new SSEClientTransport(new URL(target)),
        stdio: () => new StdioClientTransport({ command: command[0], args: command.slice(1) }),
    }[transport]();
    let revision;
    const agreed = streams.setProtocolVersion?.bind(streams);
    streams.setProtocolVersion = (version) => agreed?.((revision = version)) ?? (revision = version);
    const client = new Client({ name: 'test', version: '1.0.0' });
    await client.connect(streams);
    const { tools } = await client.listTools();
    const results = [];
    for (const [name, args, timeout] of JSON.parse(calls)) {
        const call = client.callTool({ name, arguments: args }, undefined, timeout && { timeout });
        results.push(await call.then(text, String));
    }
    await client.close();
    return { revision: revision ?? null, tools: tools.map(listed), results };
}

async function inspector(era = 'legacy') {
    const request = async (...options) => {
        const server =
            transport === 'stdio' ? command : ['--transport', transport, '--server-url', target];
        const args = [process.env.INSPECTOR, '--cli', ...server, '--protocol-era', era];
        const output = ['--format', 'json', '--quiet'];
        const run = promisify(execFile)(process.execPath, [...args, ...output, ...options]);
        return JSON.parse((await run).stdout).result;
    };
    const call = ([name, args]) => {
        const tool = ['--tool-name', name, '--tool-args-json', JSON.stringify(args)];
        return request('--method', 'tools/call', ...tool);
    };
    const [{ tools }, ...results] = await Promise.all([
        request('--method', 'tools/list'),
        ...JSON.parse(calls).map(call),
    ]);
    return { revision: null, tools: tools.map(listed), results: results.map(text) };
}

const inspector_modern = () => inspector('modern');

const text = ({ content }) => content.map((part) => part.text ?? '').join('');
const listed = ({ name, inputSchema }) => ({ name, schema: inputSchema });

console.log(JSON.stringify(await { sdk, inspector, inspector_modern }[library]()));
