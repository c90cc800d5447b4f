// A form for one row of the model's columns, and pictures of what the service answers. Computes nothing itself.
"use strict";

const BRIEF = 24; // labels shown at first where there are many
const TOP = 8; // label sets that are asked for
const FEW = 3; // label sets that are shown however improbable they are
const SMALLEST_SHARE = 0.001; // probability from which on other sets and numbers of labels are shown
const lines = new Map(); // label -> the elements of its line, made once
let model = null;
let alone = null; // the distribution given the row alone
let now = null; // the same, given what is known of labels
let known = {}; // label -> 1 or 0
let showsAll = false;
let pending = Promise.resolve(); // one question after the other, each about the form as it is then

start();

async function start() {
  try {
    model = await send("/model");
  } catch (error) {
    return say(error.message);
  }
  $("name").textContent = model.name;
  document.title = `${model.name} – mlrh serve`;
  $("about").textContent = described(model);
  $("columns").append(...model.columns.map(field));
  showOther(model.tagging);
  listen();
  ask(() => answerTo(known));
}

function described(model) {
  const sizes = model.space.min_labels === model.space.max_labels ? model.space.max_labels : `${model.space.min_labels} to ${model.space.max_labels}`;
  const parts = [`${counted(model.columns.length, "column")}, ${counted(model.labels.length, "label")}, ${sizes} in a set`];
  if (model.training.model) parts.push(model.training.model);
  if (model.training.n_rows) parts.push(`fitted to ${counted(model.training.n_rows, "row")}`);
  const exact = model.held_out.exact_match;
  if (exact && exact.mean !== null) parts.push(`the whole set right in ${percent(exact.mean)} of held-out rows`);
  return `${parts.join("; ")}.`;
}

// Requests

async function send(path, body) {
  const options = { headers: token ? { Authorization: `Bearer ${token}` } : {} };
  if (body) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options).catch(() => {
    throw new Error("No answer: the program that serves this page has ended.");
  });
  const answer = await response.json();
  if (response.headers.has("Retry-After")) return later(response, () => send(path, body));
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// A service that is still starting or has much to do says when to ask again.
async function later(response, again) {
  $("notes").textContent = "The model is busy; asking again in a moment.";
  await new Promise((resolve) => setTimeout(resolve, 1000 * (Number(response.headers.get("Retry-After")) || 1)));
  return again();
}

// Runs a question when those before it are answered, and draws; what is refused changes nothing.
function ask(question) {
  pending = pending.then(async () => {
    try {
      await question();
      say("");
      draw();
    } catch (error) {
      say(error.message);
    }
  });
}

// The distribution given the row alone and given what is to be known, which is known once there is an answer.
async function answerTo(wanted, isOtherRow = true) {
  const rows = [rowOfForm()];
  const base = isOtherRow ? await send("/distribution", { rows, top: TOP }) : alone;
  const given = Object.keys(wanted).length ? await send("/condition", { rows, known: [wanted], top: TOP }) : base;
  [alone, now, known] = [base, given, wanted];
}

function rowOfForm() {
  const fields = [...$("columns").querySelectorAll("[data-column]")];
  return Object.fromEntries(fields.map((one) => [one.dataset.column, valueOf(one)]));
}

function valueOf(one) {
  if (one.validity.badInput) throw new Error(`${one.dataset.column} must be a number, or empty where it is missing.`);
  if (one.value.trim() === "") return null;
  return one.dataset.kind === "number" ? Number(one.value) : one.value;
}

// The form

function field(column, place) {
  const item = element("div", `field ${column.kind}`);
  const label = element("label", "", column.name);
  const input = control(column);
  input.id = `column-${place}`;
  input.dataset.column = column.name;
  input.dataset.kind = column.kind;
  label.htmlFor = input.id;
  item.append(label, input);
  return item;
}

function control(column) {
  if (column.kind === "nominal") {
    const select = element("select");
    select.append(new Option("", ""), ...column.values.map((value) => new Option(value, value)));
    return select;
  }
  if (column.kind === "text") return element("textarea");
  const input = element("input");
  input.type = column.kind === "number" ? "number" : "text";
  if (column.kind === "number") input.step = "any";
  if (column.kind === "date") input.placeholder = "2024-03-31";
  return input;
}

function filterColumns() {
  const text = $("find").value.trim().toLowerCase();
  const items = [...$("columns").children];
  items.forEach((item) => (item.hidden = !item.firstElementChild.textContent.toLowerCase().includes(text)));
  $("none").hidden = items.some((item) => !item.hidden);
}

// Drawing

function draw() {
  const before = alone.distributions[0];
  const answer = now.distributions[0];
  drawLabels(before, answer);
  drawSets(answer.top_sets);
  drawColumns($("sizes"), sizesOf(before.sizes, answer.sizes));
  $("entropy").hidden = answer.entropy === null; // a pool of models can't always tell it
  if (answer.entropy !== null) $("entropy").textContent = `Entropy ${answer.entropy.toFixed(2)} nats, ${before.entropy.toFixed(2)} given the row alone.`;
  $("forget").disabled = !Object.keys(known).length;
  $("notes").textContent = now.notes.join(" ");
}

function drawLabels(before, answer) {
  const labels = answer.labels.map((label, place) => ({ ...label, before: before.labels[place].marginal }));
  labels.sort((one, other) => other.before - one.before); // by the row alone, so that a click moves no line
  const shown = labels.filter((label, place) => showsAll || place < BRIEF || label.known !== null);
  const items = shown.map((label) => line(label.name).item);
  const had = document.activeElement;
  if (items.some((item, place) => item !== $("labels").children[place]) || items.length !== $("labels").children.length) {
    $("labels").replaceChildren(...items);
    if (document.activeElement !== had && had.isConnected) had.focus(); // an element that was moved has lost it
  }
  shown.forEach((label) => drawLine(line(label.name), label));
  $("all").hidden = labels.length <= BRIEF;
  $("all").setAttribute("aria-expanded", String(showsAll));
  $("all").textContent = showsAll ? "Show only the most probable labels" : `Show all ${labels.length} labels`;
}

function line(name) {
  if (!lines.has(name)) lines.set(name, makeLine(name, (value) => () => ask(() => toggle(name, value))));
  return lines.get(name);
}

function toggle(name, value) {
  const { [name]: before, ...others } = known;
  return answerTo(before === value ? others : { ...others, [name]: value }, false);
}

function drawSets(sets) {
  const possible = sets.filter((set) => set.probability > 0);
  const shown = possible.filter((set, place) => place < FEW || set.probability >= SMALLEST_SHARE);
  $("sets").replaceChildren(...shown.map(setItem));
  $("other-sets").hidden = shown.length === possible.length;
}

function setItem(set) {
  const item = element("li");
  const names = element("ul", "chips");
  names.append(...set.labels.map((name) => chip(name, known[name] === 1)));
  if (!set.labels.length) names.append(element("li", "empty", "no label"));
  const { bar, fill, mark } = makeBar();
  mark.remove();
  fill.style.width = `${100 * set.probability}%`;
  item.append(names, bar, element("span", "share", percent(set.probability)));
  return item;
}

function sizesOf(before, after) {
  const sizes = after.map((probability, size) => ({ size, probability, before: before[size] }));
  const most = Math.max(...sizes.map((one) => Math.max(one.probability, one.before)));
  const matters = sizes.filter((one) => Math.max(one.probability, one.before) >= Math.min(SMALLEST_SHARE, most / 2));
  return sizes.slice(matters[0].size, matters[matters.length - 1].size + 1);
}

function counted(n, what) {
  return `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
}

// What a person does

function listen() {
  $("row").addEventListener("submit", (event) => {
    event.preventDefault();
    ask(() => answerTo(known));
  });
  $("row").addEventListener("change", () => ask(() => answerTo(known)));
  $("empty").addEventListener("click", () => {
    $("row").reset();
    ask(() => answerTo(known));
  });
  $("find").addEventListener("input", filterColumns);
  $("forget").addEventListener("click", () => {
    ask(() => answerTo({}, false));
    $("labels").querySelector("button").focus(); // the button is disabled then
  });
  $("all").addEventListener("click", () => {
    showsAll = !showsAll;
    draw();
  });
}
