// Fetches a URL with a library of Node.js, and prints status and body. Fails with the library's error.
import https from 'node:https';

const [library, url] = process.argv.slice(2);

async function axios(version) {
  const { default: axios } = await import(version);
  const answer = await axios.get(url, { responseType: 'text' });
  return [answer.status, answer.data];
}

const libraries = {
  https: () =>
    new Promise((resolve, reject) => {
      const request = https.get(url, async (answer) => {
        let body = '';
        for await (const piece of answer) body += piece;
        resolve([answer.statusCode, body]);
      });
      request.on('error', reject);
    }),
  fetch: async () => {
    const answer = await fetch(url);
    return [answer.status, await answer.text()];
  },
  undici: async () => {
    const { request } = await import('undici');
    const answer = await request(url);
    return [answer.statusCode, await answer.body.text()];
  },
  axios: () => axios('axios'),
  'axios-1.15': () => axios('axios-1.15'),
};

try {
  console.log(...(await libraries[library]()));
} catch (error) {
  for (let cause = error; cause; cause = cause.cause) console.error(String(cause));
  // Not `process.exit`: if the proxy leaves the connection open, the process must keep running, so that the test fails.
  process.exitCode = 1;
}
