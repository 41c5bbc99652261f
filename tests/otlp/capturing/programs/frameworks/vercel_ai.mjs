// Vercel's AI SDK: version 7 follows OpenTelemetry's conventions, version 6 has names of its own (`ai.*`).

import * as ai from 'ai';
import { createOpenAI } from '@ai-sdk/openai';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http';
import { NodeSDK } from '@opentelemetry/sdk-node';
import { z } from 'zod';

const numbers = JSON.parse(process.env.NUMBERS);
const sdk = new NodeSDK({ traceExporter: new OTLPTraceExporter() });
sdk.start();
const isLatest = 'registerTelemetry' in ai;
if (isLatest) {
  const { OpenTelemetry } = await import('@ai-sdk/otel');
  ai.registerTelemetry(new OpenTelemetry({ runtimeContext: true }));
}
const about = isLatest
  ? {
      instructions: numbers.INSTRUCTIONS,
      runtimeContext: { sessionId: numbers.SESSION },
      telemetry: { functionId: numbers.AGENT, includeRuntimeContext: { sessionId: true } },
    }
  : {
      system: numbers.INSTRUCTIONS,
      experimental_telemetry: { isEnabled: true, functionId: numbers.AGENT, metadata: { sessionId: numbers.SESSION } },
    };
const double = ai.tool({
  description: 'Double a number.',
  inputSchema: z.object({ number: z.number() }),
  execute: async ({ number }) => {
    if (number === 13) throw new Error(numbers.ERROR);
    return `${number} doubled is ${2 * number}`;
  },
});

const messages = [];
for (const question of numbers.QUESTIONS) {
  messages.push({ role: 'user', content: question });
  const options = {
    model: createOpenAI().chat(numbers.MODEL),
    messages,
    tools: { double },
    stopWhen: (ai.isStepCount ?? ai.stepCountIs)(5),
    ...about,
  };
  if (question === numbers.STREAMED_QUESTION) {
    const result = ai.streamText(options);
    await result.consumeStream();
    messages.push(...((await result.responseMessages) ?? (await result.response).messages));
  } else {
    const result = await ai.generateText(options);
    messages.push(...(result.responseMessages ?? result.response.messages));
  }
}
await sdk.shutdown();
