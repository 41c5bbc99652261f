/** The exchange of a run: of the messages that `agent_end` gives, else of what `llm_output` gives. */
import { NOTHING, answerOf, count, foldedIn, named, thoughtsOf } from "./messages.js";
import { isObject, textOf } from "./texts.js";

/** What the end of a run tells of its exchange: `exchange`, null where nobody asked; or `isTold` where all of it was told before. */
export function endOf(session, run, turn, now) {
  if (!turn) {
    return { exchange: null };
  }
  const { user, after } = turn;
  const answers = after.filter((message) => message.role === "assistant");
  const before = session.answered(user, answers.length);
  if (before === null) {
    return { isTold: true };
  }
  const fresh = answers.slice(before ?? 0);
  const [first] = before === undefined ? [user] : fresh;
  const answer = answerOf(fresh.reduce(foldedIn, NOTHING));
  return { exchange: { id: session.labelOf(run), at: timeOf(first.timestamp, now), asked: textOf(user.content), answer } };
}

/** What `llm_output` gives of an answer, added to what it gave before within the run. */
export function outputOf(event, before) {
  const texts = Array.isArray(event.assistantTexts) ? event.assistantTexts.filter((text) => typeof text === "string") : [];
  const usage = isObject(event.usage) ? event.usage : null;
  const sum = (total, ...more) => (usage ? more.reduce((all, one) => all + count(one), total ?? 0) : (total ?? null));
  return {
    asked: before?.asked || (typeof event.prompt === "string" ? event.prompt : ""),
    content: texts.at(-1) ?? before?.content ?? "",
    thinking: [...(before?.thinking ?? []), ...thoughtsOf(event.lastAssistant)],
    model: named(event.model) ?? before?.model,
    input: sum(before?.input, usage?.input, usage?.cacheRead, usage?.cacheWrite),
    output: sum(before?.output, usage?.output),
  };
}

/** The exchange of a run whose messages nobody gave; null where there is nothing in it. */
export function exchangeOfOutput(session, run) {
  const { output } = run;
  if (!output || (!output.asked && !output.content)) {
    return null;
  }
  return { id: exchangeOf(session, run), at: timeOf(run.since), asked: output.asked, answer: output };
}

/** The exchange with what its messages left open filled in. */
export function completed(exchange, output) {
  const { answer } = exchange;
  return {
    ...exchange,
    answer: {
      content: answer.content.trim() ? answer.content : (output?.content ?? answer.content),
      thinking: answer.thinking.length ? answer.thinking : (output?.thinking ?? []),
      model: answer.model ?? output?.model,
      stop: answer.stop,
      input: answer.input ?? output?.input ?? null,
      output: answer.output ?? output?.output ?? null,
    },
  };
}

/** The id of the exchange that something belongs to: of the message that is being answered, else of the run. */
export function exchangeOf(session, run) {
  return session.turn ? session.turn.exchangeId : run && session.labelOf(run);
}

/** A time as the import writes it; `now` where none is given that can be read. */
export function timeOf(given, now = Date.now()) {
  const at = new Date(given ?? now);
  const text = (Number.isNaN(at.getTime()) ? new Date(now) : at).toISOString();
  return text.replace(/(?:\.000|(\.\d{3}))Z$/, (_, fraction) => (fraction ? `${fraction}000+00:00` : "+00:00"));
}
