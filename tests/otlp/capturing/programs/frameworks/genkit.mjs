// Genkit, whose spans go to an exporter of OpenTelemetry.

import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http';
import { BatchSpanProcessor } from '@opentelemetry/sdk-trace-base';
import { genkit, z } from 'genkit';
import { enableTelemetry, flushTracing } from 'genkit/tracing';
import { openAI } from '@genkit-ai/compat-oai/openai';

const numbers = JSON.parse(process.env.NUMBERS);
await enableTelemetry({ spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter())] });
const ai = genkit({ plugins: [openAI({ apiKey: 'not-a-key', baseURL: process.env.OPENAI_BASE_URL })] });
const double = ai.defineTool(
  { name: 'double', description: 'Double a number.', inputSchema: z.object({ number: z.number() }), outputSchema: z.string() },
  async ({ number }) => {
    if (number === 13) throw new Error(numbers.ERROR);
    return `${number} doubled is ${2 * number}`;
  },
);
const agent = ai.defineFlow({ name: numbers.AGENT, inputSchema: z.string(), outputSchema: z.string() }, async (question) => {
  const options = { model: openAI.model('gpt-4.1'), system: numbers.INSTRUCTIONS, prompt: question, tools: [double] };
  if (question !== numbers.STREAMED_QUESTION) return (await ai.generate(options)).text;
  const { stream, response } = ai.generateStream(options);
  for await (const _ of stream);
  return (await response).text;
});
for (const question of numbers.QUESTIONS) {
  try {
    await agent(question);
  } catch (error) {
    console.error(error.message);
  }
}
await flushTracing();
