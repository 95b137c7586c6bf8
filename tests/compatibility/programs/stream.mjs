// Streams a reply with an SDK for Node.js, and prints it with the milliseconds between its first and its last piece.
const messages = [{ role: 'user', content: 'hello' }];

const sdks = {
  async *openai() {
    const { default: OpenAI } = await import('openai');
    const client = new OpenAI({ maxRetries: 0 });
    const chunks = await client.chat.completions.create({ model: 'stand-in', messages, stream: true });
    for await (const chunk of chunks) yield chunk.choices[0].delta.content;
  },
  async *anthropic() {
    const { default: Anthropic } = await import('@anthropic-ai/sdk');
    const client = new Anthropic({ maxRetries: 0 });
    const events = await client.messages.create({ model: 'stand-in', max_tokens: 9, messages, stream: true });
    for await (const event of events) if (event.type === 'content_block_delta') yield event.delta.text;
  },
};

const times = [];
let text = '';
try {
  for await (const piece of sdks[process.argv[2]]()) {
    times.push(performance.now());
    text += piece;
  }
} catch (error) {
  for (let cause = error; cause; cause = cause.cause) console.error(String(cause));
  process.exitCode = 1;
}
if (!process.exitCode) console.log(text, Math.round(times.at(-1) - times[0]));
