// Draws what the server computes, and tells it what a person clicks. Computes nothing itself.
"use strict";

const $ = (id) => document.getElementById(id);
const lines = new Map(); // label -> the elements of its line, made once
let overview = null;
let row = null; // the last answer about a row
let showsAll = false;
let pending = Promise.resolve(); // one action after the other, each about what is shown after those before it
let failures = 0; // actions that wait behind one that fails are dropped
const token = new URLSearchParams(location.search).get("token") || "";

start();

async function start() {
  listen();
  try {
    overview = await send("/api/session");
  } catch (error) {
    return say(error.message);
  }
  $("name").textContent = overview.name;
  document.title = `${overview.name} – mlrh tag`;
  $("output").textContent = overview.output ? `Every decision is saved at once in ${overview.output}${resumed()}.` : "";
  const wanted = Number(location.hash.slice(1));
  ask(() => show(wanted >= 1 && wanted <= overview.n_rows ? wanted : overview.start[order()]));
}

function resumed() {
  const n = overview.n_resumed;
  return n ? `, which held decisions about ${n} row${n === 1 ? "" : "s"} when the program was started` : "";
}

// Requests

async function send(path, body) {
  const options = { headers: { Authorization: `Bearer ${token}` } };
  if (body) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options).catch(() => {
    throw new Error("No answer: the program that serves this page has ended. Start it again and open the new address that it prints.");
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// Runs an action when those before it are done; it gives an answer to draw, or nothing.
function ask(action) {
  const seen = failures;
  pending = pending.then(async () => {
    if (seen !== failures) return;
    try {
      const answer = await action();
      if (!answer) return;
      say("");
      draw(answer);
    } catch (error) {
      failures += 1;
      say(error.message);
    }
  });
}

function order() {
  return $("order").value;
}

// Actions: what they are about is what is shown when they run, so they are called by ask only.

function show(number) {
  return send(`/api/row?row=${encodeURIComponent(number)}&order=${order()}`);
}

function step(to) {
  return row[to] && show(row[to]);
}

function decide(label, value) {
  return send("/api/decide", { row: row.row, label, value, order: order() });
}

function toggle(label, value) {
  const known = row.labels.find((one) => one.name === label).known;
  return decide(label, known === value ? null : value);
}

function accept() {
  return send("/api/accept", { row: row.row, order: order() });
}

function clear() {
  return send("/api/clear", { row: row.row, order: order() });
}

function undo() {
  return row.can_undo && send("/api/undo", { order: order() });
}

// Drawing

function draw(answer) {
  const isOther = !row || row.row !== answer.row;
  row = answer;
  document.body.classList.toggle("still", isOther);
  if (isOther) {
    showsAll = false;
    if (!hasFocus("find")) $("find").value = "";
    history.replaceState(null, "", `#${row.row}`);
  }
  drawPlace();
  drawLabels(isOther);
  drawBest();
  drawSizes();
  drawEntropy();
  drawFeatures();
}

function drawPlace() {
  if (!hasFocus("row")) $("row").value = row.row; // a number that is being typed stays
  $("position").textContent = `of ${overview.n_rows}`;
  const sorted = order() === "entropy" ? `; this one is number ${row.position} by uncertainty` : "";
  $("progress").textContent = `${row.n_touched} of ${overview.n_rows} rows have decisions${sorted}.`;
  $("previous").disabled = !row.previous;
  $("next").disabled = !row.next;
  $("next-untouched").disabled = !row.next_untouched || row.next_untouched === row.row;
  $("undo").disabled = !row.can_undo;
}

function drawLabels(isOther) {
  const hadFocus = focused();
  const shown = shownLabels();
  const list = $("labels");
  const wanted = shown.map((label) => line(label.name).item);
  if (wanted.length !== list.children.length || wanted.some((item, place) => item !== list.children[place])) {
    list.replaceChildren(...wanted);
  }
  shown.forEach(drawLabel);
  keepFocus(hadFocus, isOther);
  $("none").hidden = shown.length > 0;
  const hidden = row.labels.length - row.brief.length;
  $("all").hidden = hidden === 0 || $("find").value.trim() !== "";
  $("all").textContent = showsAll ? "Show only the more probable labels" : `Show all ${row.labels.length} labels`;
}

function keepFocus(had, isOther) {
  if (!had) return;
  if (isOther) focusLine($("labels").firstElementChild);
  else if (document.activeElement !== had) had.focus(); // an element that was moved has lost it
}

function shownLabels() {
  const text = $("find").value.trim().toLowerCase();
  const places = showsAll || text ? row.by_probability : row.brief;
  return places.map((place) => row.labels[place]).filter((label) => label.name.toLowerCase().includes(text));
}

function line(name) {
  if (!lines.has(name)) lines.set(name, makeLine(name));
  return lines.get(name);
}

function makeLine(name) {
  const parts = { item: element("li"), name: element("span", "name", name), ...makeBar() };
  parts.share = element("span", "share");
  parts.change = element("span", "change");
  parts.present = choice("✓", "Present", name, 1);
  parts.absent = choice("✕", "Absent", name, 0);
  const buttons = element("span", "choices");
  buttons.append(parts.present, parts.absent);
  parts.item.append(parts.name, parts.bar, parts.share, parts.change, buttons);
  parts.item.dataset.label = name;
  return parts;
}

function makeBar() {
  const parts = { bar: element("div", "bar"), fill: element("div", "fill"), mark: element("div", "mark") };
  parts.bar.setAttribute("aria-hidden", "true");
  parts.bar.append(parts.fill, parts.mark);
  return parts;
}

function choice(sign, word, name, value) {
  const button = element("button");
  button.type = "button";
  button.setAttribute("aria-label", `${name}: ${word.toLowerCase()}`);
  button.append(element("span", "sign", sign), element("span", "word", word));
  button.dataset.value = value;
  button.addEventListener("click", (event) => {
    // By a key it is the button that has the focus when the keys before it are done.
    const isByKey = event.detail === 0 && document.activeElement === button;
    ask(() => (isByKey ? toggleFocused() : toggle(name, value)));
  });
  return button;
}

function drawLabel(label) {
  const parts = line(label.name);
  const state = label.known === 1 ? "present" : label.known === 0 ? "absent" : "open";
  parts.item.className = state;
  parts.fill.style.width = `${100 * label.marginal}%`;
  parts.mark.style.left = `${100 * label.before}%`;
  parts.share.textContent = state === "open" ? percent(label.marginal) : state;
  parts.change.textContent = state === "open" ? difference(label.marginal, label.before) : `was ${percent(label.before)}`;
  parts.present.setAttribute("aria-pressed", String(label.known === 1));
  parts.absent.setAttribute("aria-pressed", String(label.known === 0));
}

function drawBest() {
  const names = row.best.labels;
  const present = new Set(row.labels.filter((label) => label.known === 1).map((label) => label.name));
  $("best").replaceChildren(...names.map((name) => chip(name, present.has(name))));
  if (!names.length) $("best").append(element("li", "empty", "no label"));
  $("confidence").textContent = percent(row.best.probability);
  $("accept").disabled = row.labels.every((label) => label.known !== null);
  $("clear").disabled = row.labels.every((label) => label.known === null);
}

function chip(name, isKnown) {
  const item = element("li", isKnown ? "present" : "", name);
  if (isKnown) item.prepend(element("span", "sign", "✓"));
  return item;
}

function drawSizes() {
  const list = $("sizes");
  const known = [...list.children].map((item) => item.dataset.size).join();
  if (known !== row.sizes.map((one) => one.size).join()) list.replaceChildren(...row.sizes.map(makeColumn));
  list.classList.toggle("many", row.sizes.length > 16);
  const most = Math.max(...row.sizes.map((one) => Math.max(one.probability, one.before)));
  const full = [0.25, 0.5, 1].find((share) => share >= most) || 1; // few scales, so that clicks rarely change it
  row.sizes.forEach((one, place) => drawColumn(list.children[place], one, full));
}

function makeColumn(one) {
  const item = element("li");
  const column = element("div", "column");
  column.append(element("div", "fill"), element("div", "mark"));
  item.append(element("span", "top"), column, element("span", "foot", String(one.size)));
  item.dataset.size = one.size;
  return item;
}

function drawColumn(item, one, full) {
  const text = `${one.size} label${one.size === 1 ? "" : "s"}: ${percent(one.probability)}, before any decision ${percent(one.before)}`;
  item.setAttribute("aria-label", text);
  item.title = text;
  item.querySelector(".top").textContent = one.probability >= 0.005 ? Math.round(100 * one.probability) : "";
  item.querySelector(".fill").style.height = `${(100 * one.probability) / full}%`;
  item.querySelector(".mark").style.bottom = `${(100 * one.before) / full}%`;
}

function drawEntropy() {
  const most = Math.max(row.entropy, row.entropy_before, 1e-12);
  $("entropy-fill").style.width = `${(100 * row.entropy) / most}%`;
  $("entropy-mark").style.left = `${(100 * row.entropy_before) / most}%`;
  const nats = `${row.entropy.toFixed(2)} nats, ${row.entropy_before.toFixed(2)} before any decision`;
  const isFew = row.effective_sets !== null && row.effective_sets < 1e6;
  const sets = isFew ? row.effective_sets.toFixed(1) : exponential(row.entropy);
  const words = row.entropy === 0 ? "one set is certain" : `as uncertain as ${sets} equally probable sets`;
  $("entropy").textContent = `${nats}: ${words}.`;
}

function drawFeatures() {
  $("features-part").hidden = !row.features.length;
  $("features").replaceChildren(...row.features.map(featureItem));
}

function featureItem(feature) {
  const item = element("li");
  const deviation = feature.deviation === null ? "" : `(${signed(feature.deviation, 1)})`;
  item.append(element("span", "name", feature.name), element("strong", "", feature.value), element("span", "muted", deviation));
  item.title = feature.name;
  return item;
}

// Words and elements

function say(sentence) {
  $("message").textContent = sentence;
  $("message").hidden = !sentence;
}

function percent(share) {
  if (share === 0 || share === 1) return `${100 * share}%`;
  if (share < 0.001) return "<0.1%";
  if (share > 0.999) return ">99.9%";
  return `${(100 * share).toFixed(1)}%`;
}

// e to some power as a power of ten, also beyond floating point numbers
function exponential(power) {
  const digits = power / Math.LN10;
  const exponent = String(Math.floor(digits)).replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
  return `${(10 ** (digits - Math.floor(digits))).toFixed(1)} × 10${exponent}`;
}

function difference(now, before) {
  const points = 100 * (now - before);
  return Math.abs(points) < 0.05 ? "" : signed(points, 1);
}

function signed(number, decimals) {
  return (number < 0 ? "−" : "+") + Math.abs(number).toFixed(decimals);
}

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

// What a person does

function listen() {
  onClick("previous", () => step("previous"));
  onClick("next", () => step("next"));
  onClick("next-untouched", () => step("next_untouched"));
  onClick("undo", undo);
  onClick("accept", accept);
  onClick("clear", clear);
  $("order").addEventListener("change", () => row && ask(() => show(row.row)));
  $("find").addEventListener("input", () => row && drawLabels(false));
  $("all").addEventListener("click", () => {
    showsAll = !showsAll;
    drawLabels(false);
  });
  $("go").addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = $("row").value.trim();
    ask(() => show(wanted));
  });
  $("row").addEventListener("blur", () => row && ($("row").value = row.row));
  document.addEventListener("keydown", press);
}

function onClick(id, action) {
  $(id).addEventListener("click", () => row && ask(action));
}

const KEYS = {
  ArrowDown: () => move(1),
  ArrowUp: () => move(-1),
  1: () => decideFocused(1),
  0: () => decideFocused(0),
  Delete: () => decideFocused(null),
  Backspace: () => decideFocused(null),
  a: accept,
  c: clear,
  u: undo,
  n: () => step("next"),
  p: () => step("previous"),
  o: () => step("next_untouched"),
};
const FIELDS = { g: "row", "/": "find" }; // at once, so that what is typed next goes into the field

function press(event) {
  const isTyping = event.target.matches("input, select, textarea");
  if (isTyping && event.key === "Escape") event.target.blur();
  const leavesField = event.target.id === "find" && event.key === "ArrowDown";
  if (!row || event.ctrlKey || event.metaKey || event.altKey || (isTyping && !leavesField)) return;
  const field = FIELDS[event.key];
  const action = KEYS[event.key];
  if (!field && !action) return;
  event.preventDefault();
  if (field) goTo($(field));
  else if (leavesField) move(1);
  else ask(action);
}

function goTo(field) {
  field.focus();
  field.select();
}

function hasFocus(id) {
  return document.activeElement === $(id);
}

function focused() {
  const item = document.activeElement && document.activeElement.closest("#labels > li");
  return item ? document.activeElement : null;
}

function move(by) {
  const items = [...$("labels").children];
  const now = focused();
  const place = now ? items.indexOf(now.closest("li")) + by : 0;
  focusLine(items[Math.min(Math.max(place, 0), items.length - 1)]);
}

function focusLine(item) {
  if (item) item.querySelector("button").focus();
}

function decideFocused(value) {
  const now = focused();
  if (now) return decide(now.closest("li").dataset.label, value);
  say("Choose a label first, by the arrow keys or the mouse.");
}

function toggleFocused() {
  const now = focused();
  return now && toggle(now.closest("li").dataset.label, Number(now.dataset.value));
}
