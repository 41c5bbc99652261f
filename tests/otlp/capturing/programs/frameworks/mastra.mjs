// Mastra, whose own exporter sends its spans.

import { Agent } from '@mastra/core/agent';
import { Mastra } from '@mastra/core/mastra';
import { createTool } from '@mastra/core/tools';
import { Observability } from '@mastra/observability';
import { OtelExporter } from '@mastra/otel-exporter';
import { z } from 'zod';

const numbers = JSON.parse(process.env.NUMBERS);

const double = createTool({
  id: 'double',
  description: 'Double a number.',
  inputSchema: z.object({ number: z.number() }),
  outputSchema: z.object({ doubled: z.number() }),
  execute: async ({ number }) => {
    if (number === 13) throw new Error(numbers.ERROR);
    return { doubled: 2 * number };
  },
});
const agent = new Agent({
  id: numbers.AGENT,
  name: numbers.AGENT,
  instructions: numbers.INSTRUCTIONS,
  model: { id: `openai/${numbers.MODEL}`, url: process.env.OPENAI_BASE_URL, apiKey: 'not-a-key' },
  tools: { double },
});
const exporter = new OtelExporter({
  provider: { custom: { endpoint: `${process.env.OTEL_EXPORTER_OTLP_ENDPOINT}/v1/traces`, protocol: 'http/protobuf' } },
});
const mastra = new Mastra({
  agents: { agent },
  observability: new Observability({ configs: { otel: { serviceName: process.env.OTEL_SERVICE_NAME, exporters: [exporter] } } }),
});

const messages = [];
for (const question of numbers.QUESTIONS) {
  messages.push({ role: 'user', content: question });
  const options = { tracingOptions: { metadata: { sessionId: numbers.SESSION } } };
  if (question === numbers.STREAMED_QUESTION) {
    const stream = await mastra.getAgent('agent').stream(messages, options);
    for await (const _ of stream.textStream);
    messages.push({ role: 'assistant', content: await stream.text });
  } else {
    const { text } = await mastra.getAgent('agent').generate(messages, options);
    messages.push({ role: 'assistant', content: text });
  }
}
await mastra.shutdown();
