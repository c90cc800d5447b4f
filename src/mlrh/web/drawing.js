// What the page for tagging and the page of a model share: elements, words, bars and lines of labels.
"use strict";

const $ = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token") || "";

function say(sentence) {
  $("message").textContent = sentence;
  $("message").hidden = !sentence;
}

// The link to the other page of the program, where there is one; it takes the token along.
function showOther(isThere) {
  $("other").hidden = !isThere;
  if (isThere) $("other").querySelector("a").search = location.search;
}

function percent(share) {
  if (share === 0 || share === 1) return `${100 * share}%`;
  if (share < 0.001) return "<0.1%";
  if (share > 0.999) return ">99.9%";
  return `${(100 * share).toFixed(1)}%`;
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

// A line per label: its bar and two buttons; whenChosen(value) gives what a click on "present" (1) or "absent" (0) does.

function makeLine(name, whenChosen) {
  const parts = { item: element("li"), name: element("span", "name", name), ...makeBar() };
  parts.share = element("span", "share");
  parts.change = element("span", "change");
  parts.present = choice("✓", "Present", name);
  parts.absent = choice("✕", "Absent", name);
  [parts.absent, parts.present].forEach((button, value) => {
    button.dataset.value = value;
    button.addEventListener("click", whenChosen(value));
  });
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

function choice(sign, word, name) {
  const button = element("button");
  button.type = "button";
  button.setAttribute("aria-label", `${name}: ${word.toLowerCase()}`);
  button.append(element("span", "sign", sign), element("span", "word", word));
  return button;
}

function drawLine(parts, label) {
  const state = label.known === 1 ? "present" : label.known === 0 ? "absent" : "open";
  parts.item.className = state;
  parts.fill.style.width = `${100 * label.marginal}%`;
  parts.mark.style.left = `${100 * label.before}%`;
  parts.share.textContent = state === "open" ? percent(label.marginal) : state;
  parts.change.textContent = state === "open" ? difference(label.marginal, label.before) : `was ${percent(label.before)}`;
  parts.present.setAttribute("aria-pressed", String(label.known === 1));
  parts.absent.setAttribute("aria-pressed", String(label.known === 0));
}

function chip(name, isKnown) {
  const item = element("li", isKnown ? "present" : "", name);
  if (isKnown) item.prepend(element("span", "sign", "✓"));
  return item;
}

// A column per number of labels: {size, probability, before}.

function drawColumns(list, sizes) {
  const known = [...list.children].map((item) => item.dataset.size).join();
  if (known !== sizes.map((one) => one.size).join()) list.replaceChildren(...sizes.map(makeColumn));
  list.classList.toggle("many", sizes.length > 16);
  const most = Math.max(...sizes.map((one) => Math.max(one.probability, one.before)));
  const full = [0.25, 0.5, 1].find((share) => share >= most) || 1; // few scales, so that clicks rarely change it
  sizes.forEach((one, place) => drawColumn(list.children[place], one, full));
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
