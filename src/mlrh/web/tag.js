// Draws what the server computes, and tells it what a person clicks. Computes nothing itself.
"use strict";

const lines = new Map(); // label -> the elements of its line, made once
let overview = null;
let row = null; // the last answer about a row
let showsAll = false;
let pending = Promise.resolve(); // one action after the other, each about what is shown after those before it
let failures = 0; // actions that wait behind one that fails are dropped
let loaded = []; // addresses of images in memory, of the row that is shown

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
  $("retrain").hidden = !overview.can_retrain;
  showOther(overview.has_service);
  if (overview.can_retrain) watch();
  const wanted = Number(location.hash.slice(1));
  ask(() => show(wanted >= 1 && wanted <= overview.n_rows ? wanted : overview.start[order()]));
}

function resumed() {
  const n = overview.n_resumed;
  return n ? `, which held decisions about ${n} row${n === 1 ? "" : "s"} when the program was started` : "";
}

// Requests

async function send(path, body) {
  const response = await request(path, body);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

async function request(path, body) {
  const options = { headers: { Authorization: `Bearer ${token}` } };
  if (body) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  return fetch(path, options).catch(() => {
    throw new Error("No answer: the program that serves this page has ended. Start it again and open the new address that it prints.");
  });
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
  drawColumns($("sizes"), row.sizes);
  drawEntropy();
  if (isOther) drawRow();
  rescueFocus();
}

// A button that is disabled while it has the focus would take the keyboard with it.
function rescueFocus() {
  const had = document.activeElement;
  if (had && had.disabled) focusLine($("labels").firstElementChild);
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
  shown.forEach((label) => drawLine(line(label.name), label));
  keepFocus(hadFocus, isOther);
  $("none").hidden = shown.length > 0;
  const hidden = row.labels.length - row.brief.length;
  $("all").hidden = hidden === 0 || $("find").value.trim() !== "";
  $("all").setAttribute("aria-expanded", String(showsAll));
  $("all").textContent = showsAll ? "Fold the improbable labels" : `Show ${hidden} improbable label${hidden === 1 ? "" : "s"}`;
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
  if (!lines.has(name)) lines.set(name, makeLine(name, (value) => choose(name, value)));
  return lines.get(name);
}

function choose(name, value) {
  return (event) => {
    // By a key it is the button that has the focus when the keys before it are done.
    const isByKey = event.detail === 0 && document.activeElement === event.currentTarget;
    ask(() => (isByKey ? toggleFocused() : toggle(name, value)));
  };
}

function drawBest() {
  const names = row.best.labels;
  const present = new Set(row.labels.filter((label) => label.known === 1).map((label) => label.name));
  $("best").replaceChildren(...names.map((name) => chip(name, present.has(name))));
  if (!names.length) $("best").append(element("li", "empty", "no label"));
  $("confidence").textContent = percent(row.best.probability);
  $("refused").hidden = !row.is_refused;
  $("accept").disabled = row.labels.every((label) => label.known !== null);
  $("clear").disabled = row.labels.every((label) => label.known === null);
}

function drawEntropy() {
  $("uncertainty").hidden = row.entropy === null; // a pool of models can't always tell it
  if (row.entropy === null) return;
  const most = Math.max(row.entropy, row.entropy_before, 1e-12);
  $("entropy-fill").style.width = `${(100 * row.entropy) / most}%`;
  $("entropy-mark").style.left = `${(100 * row.entropy_before) / most}%`;
  const nats = `${row.entropy.toFixed(2)} nats, ${row.entropy_before.toFixed(2)} before any decision`;
  const isFew = row.effective_sets !== null && row.effective_sets < 1e6;
  const sets = isFew ? row.effective_sets.toFixed(1) : exponential(row.entropy);
  const words = row.entropy === 0 ? "one set is certain" : `as uncertain as ${sets} equally probable sets`;
  $("entropy").textContent = `${nats}: ${words}.`;
}

// e to some power as a power of ten, also beyond floating point numbers
function exponential(power) {
  const digits = power / Math.LN10;
  const exponent = String(Math.floor(digits)).replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
  return `${(10 ** (digits - Math.floor(digits))).toFixed(1)} × 10${exponent}`;
}

// What the row holds

function drawRow() {
  loaded.forEach((address) => URL.revokeObjectURL(address));
  loaded = [];
  $("row-number").textContent = row.row;
  $("cells").replaceChildren(...row.cells.map(cellItem));
  const shown = new Set(row.cells.map((cell) => cell.name));
  const features = row.features.filter((feature) => feature.stands_out && !shown.has(feature.name));
  $("features").replaceChildren(...features.map(featureItem));
  $("features-scale").textContent = features.length ? `(beside the mean of ${overview.scale})` : "(none)";
  $("features-title").hidden = !row.features.length;
  $("row-part").hidden = !row.cells.length && !row.features.length;
}

function cellItem(cell) {
  const item = element("div", `cell ${cell.kind}`);
  const value = element("dd");
  value.append(...{ text: textParts, link: linkParts, image: imageParts, file: fileParts }[cell.kind](cell));
  if (cell.kind === "text" && cell.text.length > 600) {
    value.className = "long";
    value.tabIndex = 0; // it scrolls, also by keys
  }
  item.append(element("dt", "", cell.name), value);
  return item;
}

function textParts(cell) {
  const more = cell.left_out ? [element("span", "muted", ` … and ${cell.left_out.toLocaleString("en")} characters more`)] : [];
  return [cell.text, ...more];
}

function linkParts(cell) {
  const link = element("a", "", cell.text);
  link.href = cell.text;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  return [link];
}

function imageParts(cell) {
  const [link] = linkParts(cell);
  link.replaceChildren(picture(cell, cell.text, () => link.replaceChildren(cell.text)));
  return [link];
}

function fileParts(cell) {
  const place = element("span", "muted", "…");
  loadImage(row.row, cell, place);
  return [place];
}

async function loadImage(number, cell, place) {
  try {
    const query = `row=${number}&column=${encodeURIComponent(cell.name)}`;
    const response = await request(`/api/image?${query}`);
    if (!response.ok) throw new Error((await response.json()).error);
    const address = URL.createObjectURL(await response.blob());
    if (number !== row.row) return URL.revokeObjectURL(address);
    loaded.push(address);
    place.replaceWith(picture(cell, address, (image) => image.replaceWith(`${cell.text} is no image that a browser can show.`)));
  } catch (error) {
    place.textContent = error.message;
  }
}

function picture(cell, address, whenBroken) {
  const image = element("img");
  image.alt = `${cell.name}: ${cell.text}`;
  image.referrerPolicy = "no-referrer";
  image.addEventListener("error", () => whenBroken(image));
  image.src = address;
  return image;
}

function featureItem(feature) {
  const item = element("li");
  const exactly = feature.deviation === null ? "" : ` (${signed(feature.deviation, 1)} standard deviations)`;
  item.append(element("span", "name", feature.name), element("strong", "", feature.value), element("span", "", feature.words));
  item.title = `${feature.name}: ${feature.words}${exactly}`;
  return item;
}

// A fit in the background

async function retrain() {
  await send("/api/retrain", {});
  $("moved").hidden = true;
  watch();
}

// Asks how the fit stands until it has ended; the page stays usable meanwhile.
async function watch() {
  try {
    const fit = await send("/api/retraining");
    $("retrain").disabled = fit.state === "running";
    const rows = `${fit.n_rows} decided row${fit.n_rows === 1 ? "" : "s"}`;
    $("retraining").textContent = fit.state === "running" ? `Retraining with ${rows}, ${fit.seconds} s so far. Go on meanwhile.` : "";
    if (fit.state === "running") setTimeout(watch, 500);
    if (fit.state === "failed") say(fit.error);
    if (fit.state === "done") drawMoved(fit);
  } catch (error) {
    say(error.message);
  }
}

function drawMoved(fit) {
  const moved = fit.moved;
  $("moved-words").textContent = fit.sentence;
  $("moved-labels").replaceChildren(...moved.labels.filter(change).map(movedLabel));
  $("moved-rows").replaceChildren(...moved.rows.map(movedRow));
  for (const list of [$("moved-labels"), $("moved-rows")]) list.parentElement.hidden = !list.children.length;
  $("moved").hidden = false;
  if (row) ask(() => show(row.row));
}

function movedLabel(label) {
  const item = element("li");
  item.append(element("span", "name", label.name), element("span", "step", change(label)));
  return item;
}

// Expected rows before and after; nothing where both read the same.
function change(label) {
  const [before, after] = [label.before, label.after].map((rows) => rows.toFixed(1));
  return before === after ? "" : `${before} → ${after}`;
}

function movedRow(one) {
  const item = element("li");
  const button = element("button", "", `Row ${one.row}`);
  button.type = "button";
  button.addEventListener("click", () => ask(() => show(one.row)));
  item.append(button, element("span", "", `${inBraces(one.before)} → ${inBraces(one.after)}`));
  return item;
}

function inBraces(names) {
  return names.length ? names.join(", ") : "no label";
}

// What a person does

function listen() {
  onClick("previous", () => step("previous"));
  onClick("next", () => step("next"));
  onClick("next-untouched", () => step("next_untouched"));
  onClick("undo", undo);
  onClick("accept", accept);
  onClick("clear", clear);
  onClick("retrain", retrain);
  $("help").addEventListener("click", () => $("keys").showModal());
  $("keys-close").addEventListener("click", () => $("keys").close());
  $("moved-close").addEventListener("click", closeMoved);
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
  r: () => overview.can_retrain && !$("retrain").disabled && retrain(),
};
const FIELDS = { g: "row", "/": "find" }; // at once, so that what is typed next goes into the field

function press(event) {
  if (!row || event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
  if (event.key === "Escape") return escape(event);
  const isTyping = event.target.matches("input, select, textarea");
  if (isTyping) return event.target.id === "find" && leaveSearch(event);
  const field = FIELDS[event.key];
  const action = KEYS[event.key];
  if (!field && !action && event.key !== "?") return;
  event.preventDefault();
  if (field) goTo($(field));
  else if (action) ask(action);
  else $("keys").showModal();
}

// Enter and the arrow down lead from the search to its first hit.
function leaveSearch(event) {
  if (event.key !== "Enter" && event.key !== "ArrowDown") return;
  event.preventDefault();
  focusLine($("labels").firstElementChild);
}

function escape(event) {
  event.preventDefault();
  const isTyping = event.target.matches("input, select, textarea");
  $("find").value = "";
  showsAll = false;
  say("");
  drawLabels(false);
  if (isTyping) focusLine($("labels").firstElementChild);
}

function closeMoved() {
  $("moved").hidden = true;
  $("retrain").focus();
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

// The focus follows: after 0 it is on "absent", so that Enter or the space bar takes back what the key did.
function decideFocused(value) {
  const now = focused();
  if (!now) return say("Choose a label first, by the arrow keys or the mouse.");
  const label = now.closest("li").dataset.label;
  if (value !== null) line(label)[value === 1 ? "present" : "absent"].focus();
  return decide(label, value);
}

function toggleFocused() {
  const now = focused();
  return now && toggle(now.closest("li").dataset.label, Number(now.dataset.value));
}
