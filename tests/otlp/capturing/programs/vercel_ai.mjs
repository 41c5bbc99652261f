// Vercel's AI SDK: version 7 follows OpenTelemetry's conventions, version 6 has names of its own (`ai.*`).

import * as ai from 'ai';
import { createOpenAI } from '@ai-sdk/openai';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http';
import { NodeSDK } from '@opentelemetry/sdk-node';
import { z } from 'zod';

const scenario = JSON.parse(process.env.SCENARIO);
const sdk = new NodeSDK({ traceExporter: new OTLPTraceExporter() });
sdk.start();

const isLatest = 'registerTelemetry' in ai;
if (isLatest) {
  const { OpenTelemetry } = await import('@ai-sdk/otel');
  ai.registerTelemetry(new OpenTelemetry({ runtimeContext: true }));
}

function telemetry(session) {
  const told = { sessionId: session, userId: scenario.USER, agentVersion: scenario.VERSION };
  if (!isLatest) {
    return { experimental_telemetry: { isEnabled: true, functionId: scenario.AGENT, metadata: told } };
  }
  const included = Object.fromEntries(Object.keys(told).map((name) => [name, true]));
  return { runtimeContext: told, telemetry: { functionId: scenario.AGENT, includeRuntimeContext: included } };
}

const weather = { Bergen: ['rain', 9], Lisbon: ['sun', 21] };
const tools = {
  get_weather: ai.tool({
    description: 'Tell the weather in a town.',
    inputSchema: z.object({ town: z.string() }),
    execute: async ({ town }) => ({ town, sky: weather[town][0], celsius: weather[town][1] }),
  }),
  book_boat: ai.tool({
    description: 'Book a boat.',
    inputSchema: z.object({ destination: z.string() }),
    execute: async ({ destination }) => {
      throw new Error(`no boat goes to ${destination}`);
    },
  }),
};

function asked(session, messages) {
  const instructions = isLatest ? { instructions: scenario.SYSTEM } : { system: scenario.SYSTEM };
  return {
    model: createOpenAI()(scenario.MODEL),
    messages,
    tools,
    maxRetries: 0,
    stopWhen: (ai.isStepCount ?? ai.stepCountIs)(5),
    ...instructions,
    ...telemetry(session),
  };
}

const messages = [{ role: 'user', content: scenario.WEATHER }];
const first = await ai.generateText(asked(scenario.SESSION, messages));
messages.push(...(first.responseMessages ?? first.response.messages), { role: 'user', content: scenario.BOAT });
const second = ai.streamText(asked(scenario.SESSION, messages));
await second.consumeStream();
try {
  await ai.generateText(asked(scenario.REFUSED_SESSION, [{ role: 'user', content: scenario.REFUSED }]));
} catch (error) {
  if (!ai.APICallError.isInstance(error)) throw error;
}
await sdk.shutdown();
