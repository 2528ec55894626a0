"use strict";
// The page talks to the server that delivered it, through its public routes.

const base = location.pathname.replace(/\/+$/, "");
const byId = (id) => document.getElementById(id);
const kMost = 2;  // of a slider; the number beside it takes any scale

const state = {
  model: "",
  adapters: [],
  panels: [],
  running: new Set(),  // AbortControllers
};

function headers() {
  const key = byId("key").value.trim();
  const out = {"Content-Type": "application/json"};
  if (key) out["Authorization"] = "Bearer " + key;
  return out;
}

async function failureOf(response) {
  let text = response.status + " " + response.statusText;
  try {
    const body = await response.json();
    text = body.error && body.error.message || text;
  } catch (ignored) {
    // No JSON: the status must do.
  }
  return new Error(text);
}

async function getJson(path) {
  const response = await fetch(base + path, {headers: headers()});
  if (!response.ok) throw await failureOf(response);
  return response.json();
}

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

// ---- panels and their sliders

class Panel {
  constructor(name) {
    const piece = byId("panel").content.cloneNode(true);
    this.root = piece.querySelector(".panel");
    this.name = name;
    this.log = piece.querySelector(".log");
    this.stats = piece.querySelector(".stats");
    this.sliders = piece.querySelector(".sliders");
    this.messages = [];
    this.inputs = new Map();  // adapter id: its number field
    this.root.querySelector("h2").textContent = name;
    this.root.setAttribute("aria-label", "Answer " + name);
    this.log.setAttribute("aria-label", "Conversation " + name);
    byId("panels").append(piece);
    this.drawSliders();
  }

  drawSliders() {
    this.sliders.replaceChildren();
    this.inputs.clear();
    this.root.querySelector(".adapters").hidden = !state.adapters.length;
    for (const adapter of state.adapters) {
      const id = `scale-${this.name}-${adapter.id}`;
      const row = document.createElement("div");
      row.className = "slider";
      const label = document.createElement("label");
      label.htmlFor = id;
      label.textContent = adapter.task_name || "adapter " + adapter.id;
      label.title = adapter.path || "";
      const range = document.createElement("input");
      Object.assign(range, {type: "range", id, min: 0, max: kMost, step: 0.05,
                            value: adapter.scale, disabled: adapter.fixed});
      const number = document.createElement("input");
      Object.assign(number, {type: "number", step: 0.05, value: adapter.scale,
                             disabled: adapter.fixed});
      number.setAttribute("aria-label", "Scale of " + label.textContent);
      range.addEventListener("input", () => { number.value = range.value; });
      number.addEventListener("input", () => { range.value = number.value; });
      row.append(label, range, number);
      this.sliders.append(row);
      this.inputs.set(adapter.id, number);
    }
  }

  lora() {
    return [...this.inputs].map(
        ([id, input]) => ({id, scale: Number(input.value) || 0}));
  }

  add(role, text) {
    const element = document.createElement("div");
    element.className = "message " + role;
    element.textContent = text;
    this.log.append(element);
    this.log.scrollTop = this.log.scrollHeight;
    return element;
  }

  clear() {
    this.messages = [];
    this.log.replaceChildren();
    this.stats.textContent = "";
  }
}

function layout() {
  const wanted = byId("compare").checked ? ["A", "B"] : ["A"];
  while (state.panels.length > wanted.length) {
    state.panels.pop().root.remove();
  }
  while (state.panels.length < wanted.length) {
    state.panels.push(new Panel(wanted[state.panels.length]));
  }
  state.panels[0].root.querySelector("h2").hidden = wanted.length === 1;
}

// ---- requests

function bodyFor(panel, text) {
  const number = (id) => {
    const value = byId(id).value;
    return value === "" ? undefined : Number(value);
  };
  const body = {stream: true, temperature: number("temperature")};
  if (number("seed") !== undefined) body.seed = number("seed");
  if (panel.inputs.size) body.lora = panel.lora();
  if (byId("mode").value === "text") {
    return ["/completion", {...body, prompt: text, n_predict: number("max-tokens")}];
  }
  const system = byId("system").value.trim();
  const messages = system ? [{role: "system", content: system}] : [];
  return ["/v1/chat/completions", {
    ...body, model: state.model, messages: [...messages, ...panel.messages],
    max_tokens: number("max-tokens"), stream_options: {include_usage: true},
  }];
}

// The data of each server-sent event of a body, as it comes.
async function* eventsOf(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let held = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    held += decoder.decode(value, {stream: true});
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) {
      const data = event.split("\n").filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

// What one event adds, on either route.
function pieceOf(event) {
  if (event.error) throw new Error(event.error.message || "the server failed");
  const delta = event.choices && event.choices[0] && event.choices[0].delta || {};
  return {
    text: event.content || delta.content || "",
    thought: delta.reasoning_content || "",
    timings: event.timings,
    usage: event.usage,
  };
}

class Answer {
  constructor(panel) {
    this.panel = panel;
    this.element = panel.add("assistant", "");
    this.text = "";
    this.pieces = 0;
    this.begun = performance.now();
    this.first = 0;
  }

  take(piece) {
    if (piece.thought) {
      if (!this.thoughts) {
        const details = document.createElement("details");
        const summary = document.createElement("summary");
        summary.textContent = "Reasoning";
        this.thoughts = document.createElement("div");
        this.thoughts.className = "thoughts";
        details.append(summary, this.thoughts);
        this.element.append(details);
      }
      this.thoughts.append(piece.thought);
    }
    if (piece.text) {
      this.text += piece.text;
      this.element.append(piece.text);
    }
    if (piece.text || piece.thought) {
      this.pieces += 1;
      this.first ||= performance.now();
      const log = this.panel.log;
      if (log.scrollHeight - log.scrollTop - log.clientHeight < 120) {
        log.scrollTop = log.scrollHeight;
      }
    }
    if (piece.timings) this.timings = piece.timings;
    if (piece.usage) this.usage = piece.usage;
    this.showStats();
  }

  showStats() {
    const parts = [];
    if (this.first) {
      parts.push(`first token ${Math.round(this.first - this.begun)} ms`);
    }
    const seconds = (performance.now() - this.first) / 1000;
    const t = this.timings;
    if (t && t.predicted_per_second) {
      parts.push(`${t.predicted_n} tokens at ${t.predicted_per_second.toFixed(1)}/s`);
      parts.push(`${t.prompt_n} prompt tokens evaluated, ${t.cache_n || 0} from the cache`);
    } else if (this.pieces > 1 && seconds > 0) {
      parts.push(`${((this.pieces - 1) / seconds).toFixed(1)} tokens/s`);
    }
    this.panel.stats.textContent = parts.join(" · ");
  }
}

async function ask(panel, text) {
  const chat = byId("mode").value !== "text";
  panel.add("user", text);
  if (chat) panel.messages.push({role: "user", content: text});
  const answer = new Answer(panel);
  const abort = new AbortController();
  state.running.add(abort);
  setRunning();
  try {
    const [path, body] = bodyFor(panel, text);
    const response = await fetch(base + path, {
      method: "POST", headers: headers(), body: JSON.stringify(body),
      signal: abort.signal,
    });
    if (!response.ok) throw await failureOf(response);
    for await (const event of eventsOf(response)) answer.take(pieceOf(event));
  } catch (error) {
    if (error.name !== "AbortError") panel.add("bad", error.message);
  } finally {
    state.running.delete(abort);
    setRunning();
  }
  if (chat && answer.text) {
    panel.messages.push({role: "assistant", content: answer.text});
  } else if (chat) {
    panel.messages.pop();  // an unanswered question would spoil the next one
  }
}

function setRunning() {
  const running = state.running.size > 0;
  byId("send").disabled = running;
  byId("stop").disabled = !running;
}

function stop() {
  for (const abort of state.running) abort.abort();
}

// ---- start

async function connect() {
  notice("");
  try {
    const models = await getJson("/v1/models");
    state.model = models.data[0].id;
    byId("model").textContent = state.model;
    const [props, adapters] =
        await Promise.all([getJson("/props"), getJson("/lora-adapters")]);
    const fixed = Boolean(props.lora_fused);
    state.adapters = adapters.map((adapter) => ({...adapter, fixed}));
    const recipe = props.surgery;
    byId("recipe").hidden = !recipe;
    byId("recipe-text").textContent =
        typeof recipe === "string" ? recipe : JSON.stringify(recipe);
    if (!props.chat_template) byId("mode").value = "text";
  } catch (error) {
    byId("model").textContent = state.model || "not connected";
    notice(error.message);
    if (/key/i.test(error.message)) byId("settings").open = true;
  }
  for (const panel of state.panels) panel.drawSliders();
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = byId("prompt").value;
  if (!text.trim() || state.running.size) return;
  byId("prompt").value = "";
  for (const panel of state.panels) ask(panel, text);
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("composer").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
byId("stop").addEventListener("click", stop);
byId("clear").addEventListener("click", () => {
  stop();
  for (const panel of state.panels) panel.clear();
  byId("prompt").focus();
});
byId("compare").addEventListener("change", layout);
byId("key").addEventListener("change", connect);
layout();
connect();
byId("prompt").focus();
