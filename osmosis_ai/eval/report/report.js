"use strict";
// The list of rollouts and their conversations. Text of a run reaches the page as text nodes only.
(() => {
  const ROW = 0, STEP = 1, MEMBER = 2, STATUS = 3, REWARD = 4, TURNS = 5, TOKENS = 6, SECONDS = 7, PROMPT = 8;
  const PLACE = 0, TIME = 1, GIVEN = 2, SAMPLED = 3, FINISH = 4, MALFORMED = 5; // of an answer
  const PAGE = 60; // list entries that are put on the page at a time
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("index").textContent);
  const rollouts = data.rollouts;
  const list = byId("list");
  const parsed = new Map(); // chunk number -> its conversations, read when first needed
  let shown = []; // numbers of the rollouts that pass the filters, in order
  let rendered = 0;
  let searching = 0; // a newer search ends an older one

  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function chunk(number) {
    if (!parsed.has(number)) parsed.set(number, JSON.parse(byId("chunk-" + number).textContent));
    return parsed.get(number);
  }

  const short = (number) => String(Number(number.toPrecision(4)));

  // --- the list

  function outcome(entry) {
    if (entry[REWARD] === null) return "failed";
    return entry[REWARD] >= data.passThreshold ? "passed" : "missed";
  }

  function line(number) {
    const entry = rollouts[number];
    const item = element("li");
    const button = element("button", "line");
    button.type = "button";
    button.setAttribute("aria-expanded", "false");
    const place = "row " + entry[ROW] + (entry[MEMBER] ? "·" + entry[MEMBER] : "") + (data.kind === "train" ? " · step " + entry[STEP] : "");
    const kind = outcome(entry);
    const reward = kind === "failed" ? entry[STATUS].replaceAll("_", " ") : short(entry[REWARD]);
    button.append(
      element("span", "place", place),
      element("span", "reward " + (kind === "passed" ? "good" : kind === "failed" ? "bad" : ""), reward),
      element("span", "prompt", entry[PROMPT]),
      element("span", "numbers", entry[TURNS] + (entry[TURNS] === 1 ? " turn · " : " turns · ") + entry[TOKENS] + " tok · " + entry[SECONDS].toFixed(2) + " s"),
    );
    button.addEventListener("click", () => toggle(item, button, number));
    item.append(button);
    return item;
  }

  function renderMore() {
    const part = document.createDocumentFragment();
    for (const number of shown.slice(rendered, rendered + PAGE)) part.append(line(number));
    rendered = Math.min(shown.length, rendered + PAGE);
    list.append(part);
  }

  function show(numbers) {
    shown = numbers;
    rendered = 0;
    list.replaceChildren();
    renderMore();
    const all = rollouts.length;
    byId("found").textContent = (shown.length === all ? "" : shown.length.toLocaleString() + " of ") + all.toLocaleString() + (all === 1 ? " rollout" : " rollouts");
  }

  // --- a conversation

  function toggle(item, button, number) {
    const open = item.querySelector(".transcript");
    if (open) open.remove();
    else item.append(transcript(number));
    button.setAttribute("aria-expanded", open ? "false" : "true");
  }

  function transcript(number) {
    const from = chunk(Math.floor(number / data.chunk));
    const rollout = from.rollouts[number % data.chunk];
    const box = element("div", "transcript");
    box.append(element("div", "soft", rollout.id + " · " + seconds(rollout.seconds[0]) + ", model calls " + seconds(rollout.seconds[1])));
    if (rollout.reason) box.append(element("pre", "bad", rollout.reason));
    if (rollout.label !== undefined && rollout.label !== null) box.append(element("div", "soft", "label: " + rollout.label));
    if (rollout.metadata && Object.keys(rollout.metadata).length) box.append(element("div", "soft", "metadata: " + JSON.stringify(rollout.metadata)));
    for (const conversation of rollout.conversations) {
      box.append(element("h3", "", heading(conversation)));
      const answers = new Map(conversation.answers.map((answer) => [answer[PLACE], answer]));
      conversation.messages.forEach((index, place) => box.append(message(from.messages[index], answers.get(place))));
    }
    return box;
  }

  function heading(conversation) {
    const parts = [conversation.name];
    if (conversation.reward !== null) parts.push("reward " + short(conversation.reward));
    for (const [name, value] of Object.entries(conversation.metrics)) parts.push(name + " " + value);
    if (conversation.policyVersion !== null) parts.push("policy version " + conversation.policyVersion);
    if (conversation.branch) parts.push("branch: " + conversation.branch);
    return parts.join(" · ");
  }

  const ROLES = new Set(["system", "user", "assistant", "tool", "developer"]); // a role is text of a run too

  function message(one, answer) {
    const box = element("div", "message " + (ROLES.has(one.role) ? one.role : ""));
    const words = element("div");
    if (one.reasoning) words.append(block("reasoning", one.reasoning));
    if (one.text || !(one.calls || one.reasoning)) words.append(block("", one.text || ""));
    for (const [name, given] of one.calls || []) words.append(block("call", name + "(" + given + ")"));
    if (answer) words.append(element("div", "timing", timing(answer)));
    box.append(element("div", "role", one.role), words);
    return box;
  }

  // Under each answer: from the call to its answer, tokens of the prompt and of the answer, why it ended.
  function timing(answer) {
    const parts = [seconds(answer[TIME]), answer[GIVEN] + " + " + answer[SAMPLED] + " tokens", answer[FINISH]];
    if (answer[MALFORMED]) parts.push(answer[MALFORMED] + " malformed tool calls");
    return parts.join(" · ");
  }

  const seconds = (number) => number.toFixed(2) + " s";

  function block(className, text) {
    const made = element("pre", className);
    const wanted = needle();
    let from = 0;
    while (wanted) {
      const at = text.toLowerCase().indexOf(wanted, from);
      if (at < 0) break;
      made.append(text.slice(from, at), element("mark", "", text.slice(at, at + wanted.length)));
      from = at + wanted.length;
    }
    made.append(text.slice(from));
    return made;
  }

  // --- filters and search

  const needle = () => byId("search").value.trim().toLowerCase();
  const columns = Object.keys(data.columns).map((name) => columnFilter(name));

  function columnFilter(name) {
    const values = [...new Set(Object.values(data.columns[name]))].sort();
    const select = element("select");
    select.setAttribute("aria-label", name);
    for (const value of ["", ...values]) {
      const option = element("option", "", value === "" ? "any " + name : name + ": " + value);
      option.value = value;
      select.append(option);
    }
    byId("filters").append(select);
    return { name, select };
  }

  function passes(entry) {
    const row = byId("row").value, step = byId("step").value, wanted = byId("outcome").value;
    return (row === "" || entry[ROW] === Number(row))
      && (step === "" || entry[STEP] === Number(step))
      && (wanted === "" || outcome(entry) === wanted)
      && columns.every(({ name, select }) => select.value === "" || data.columns[name][entry[ROW]] === select.value);
  }

  function ordered(numbers) {
    const lowest = (n) => rollouts[n][REWARD] === null ? -Infinity : rollouts[n][REWARD];
    const by = { low: lowest, tokens: (n) => -rollouts[n][TOKENS], slow: (n) => -rollouts[n][SECONDS] }[byId("order").value];
    if (!by) return numbers;
    return numbers.sort((a, b) => (by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : a - b));
  }

  // Which messages of a chunk hold the text, then which rollouts hold such a message.
  function matches(number, wanted) {
    const holds = chunk(number).messages.map((one) =>
      [one.text, one.reasoning, ...(one.calls || []).flat()].some((text) => text && text.toLowerCase().includes(wanted)));
    return chunk(number).rollouts.map((rollout) =>
      rollout.reason.toLowerCase().includes(wanted) || rollout.id.toLowerCase().includes(wanted)
      || rollout.conversations.some((conversation) => conversation.messages.some((index) => holds[index])));
  }

  async function update() {
    const mine = ++searching;
    const wanted = needle();
    const candidates = rollouts.map((_, number) => number).filter((number) => passes(rollouts[number]));
    if (!wanted) return show(ordered(candidates));
    const found = [];
    let known = -1, hits = [];
    for (const number of candidates) {
      const at = Math.floor(number / data.chunk);
      if (at !== known) {
        if (at % 8 === 7) await new Promise((resume) => setTimeout(resume)); // the page stays usable
        if (mine !== searching) return;
        [known, hits] = [at, matches(at, wanted)];
      }
      if (hits[number % data.chunk]) found.push(number);
    }
    show(ordered(found));
  }

  let waiting = 0;
  byId("filters").addEventListener("input", (event) => {
    clearTimeout(waiting);
    waiting = setTimeout(update, event.target.id === "search" ? 200 : 0);
  });
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("step").hidden = data.kind !== "train";
  if ("IntersectionObserver" in window) {
    new IntersectionObserver((seen) => {
      if (seen.some((one) => one.isIntersecting) && rendered < shown.length) renderMore();
    }, { rootMargin: "600px" }).observe(byId("more"));
  }
  show(rollouts.map((_, number) => number));
  document.documentElement.dataset.ready = String(Math.round(performance.now())); // ms; read by tests
})();
