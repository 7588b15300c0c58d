// What the dashboard does beyond links and forms. Every page works without this file; it only adds convenience:
//
//   1. Copy buttons, and "select all on this page".
//   2. Keys: j k move, Enter opens, x selects, / goes to the filter, g and a letter goes to a page, ? shows them all.
//   3. Completion of field names and values in a filter.
//   4. Live pages: when the server reports a change, the same page is fetched again and its regions are replaced.
//      The row under the pointer and what is selected or being typed never move; a hidden tab fetches nothing.
"use strict";

document.documentElement.classList.add("js");

const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));
const rows = () => all("[data-row]");

// 1. Copy and select.

document.addEventListener("click", (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    const text = copy.closest(".copy").querySelector("code").textContent;
    navigator.clipboard.writeText(text).then(() => {
      const before = copy.textContent;
      copy.textContent = "Copied";
      setTimeout(() => { copy.textContent = before; }, 1200);
    });
  }
  for (const menu of all("details.menu[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});

function countSelected() {
  const boxes = all("input[name=id]");
  const selected = boxes.filter((box) => box.checked).length;
  for (const place of all("[data-selected]")) place.textContent = String(selected);
  const page = document.querySelector("[data-select-page]");
  if (page) {
    page.checked = boxes.length > 0 && selected === boxes.length;
    page.indeterminate = selected > 0 && selected < boxes.length;
  }
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-select-page]")) {
    for (const box of all("input[name=id]")) box.checked = event.target.checked;
  }
  if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
  countSelected();
});

// 2. Keys.

let current = null;
let prefix = false;

function moveTo(row) {
  if (!row) return;
  for (const other of all("[data-row].current")) other.classList.remove("current");
  row.classList.add("current");
  row.scrollIntoView({ block: "nearest" });
  current = row.id;
}

function step(by) {
  const list = rows();
  const at = list.findIndex((row) => row.id === current);
  moveTo(list[at < 0 ? 0 : Math.min(Math.max(at + by, 0), list.length - 1)]);
}

const places = { g: "/groups", o: "/", d: "/dlq", p: "/operations", q: "/queues", b: "/breakers", w: "/workers", a: "/audit" };

const acts = {
  j: () => step(1),
  k: () => step(-1),
  x: () => {
    const box = current && document.getElementById(current)?.querySelector("input[name=id]");
    if (box) { box.checked = !box.checked; countSelected(); }
  },
  Enter: () => current && document.getElementById(current)?.querySelector("a.open")?.click(),
  "/": () => document.querySelector("[data-filter]")?.focus(),
  "?": () => document.getElementById("keys")?.showModal(),
  n: () => document.querySelector("a[rel=next]")?.click(),
  p: () => document.querySelector("a[rel=prev]")?.click(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input:not([type=checkbox]), textarea, select, dialog")) return;
  if (event.key === "Enter" && event.target !== document.body) return;
  if (prefix) {
    prefix = false;
    if (places[event.key]) { event.preventDefault(); location.assign(places[event.key]); }
    return;
  }
  if (event.key === "g") { prefix = true; setTimeout(() => { prefix = false; }, 1000); return; }
  const act = acts[event.key];
  if (act) { event.preventDefault(); act(); }
});

// 3. Completion: the word before the cursor, if it is the beginning of a field, or of a value of a field that has few.

const input = document.querySelector("[data-fields]");
if (input) {
  const fields = input.dataset.fields.split(" ");
  const values = Object.fromEntries(input.dataset.values.split(" ").map((pair) => {
    const [field, names] = pair.split("=");
    return [field, names.split(",")];
  }));
  const list = document.createElement("datalist");
  list.id = "filter-completions";
  input.after(list);
  input.setAttribute("list", list.id);
  input.addEventListener("input", () => {
    const before = input.value.slice(0, input.selectionStart);
    const word = before.match(/[a-z_]*$/)[0];
    const kept = before.slice(0, before.length - word.length);
    const field = kept.match(/([a-z_]+):(?:[a-z_]+,)*$/)?.[1];
    const known = field ? values[field] ?? [] : word ? fields.map((name) => `${name}:`) : [];
    list.replaceChildren(...known.filter((name) => name.startsWith(word)).map((name) => {
      const option = document.createElement("option");
      option.value = kept + name;
      return option;
    }));
  });
}

// On a narrow screen the navigation is one line that scrolls; it begins with the page that is open.
const here = document.querySelector(".nav [aria-current]");
const side = document.querySelector(".side");
if (here && side.scrollWidth > side.clientWidth) side.scrollLeft = here.offsetLeft - side.clientWidth / 2;

// 4. Live pages.

const policy = window.trustedTypes?.createPolicy("redrive", { createHTML: (text) => text });
let pending = null;
let fetching = false;

// Whether replacing this region would take something from under the person's hands.
function inUse(region) {
  return region.matches(":hover") || region.contains(document.activeElement) ||
    region.querySelector("input:checked, details[open]") !== null;
}

// Replaces the rows that are still there, each in its place; adds and removes none.
function refreshRows(region, fresh) {
  for (const row of all("[data-row]", region)) {
    const next = fresh.querySelector(`#${CSS.escape(row.id)}`);
    if (!next || row.querySelector("input:checked") || row.matches(":hover")) continue;
    row.replaceChildren(...next.childNodes);
  }
}

async function refresh() {
  pending = null;
  if (document.hidden) return;
  if (fetching) { schedule(); return; }
  fetching = true;
  try {
    const reply = await fetch(location.href, { headers: { "x-live": "1" } });
    if (!reply.ok || reply.redirected) return;
    const text = await reply.text();
    const fresh = new DOMParser().parseFromString(policy ? policy.createHTML(text) : text, "text/html");
    let left = false;
    for (const region of all("[data-region]")) {
      const next = fresh.getElementById(region.id);
      if (!next || next.outerHTML === region.outerHTML) continue;
      if (inUse(region)) {
        refreshRows(region, next);
        const before = all("[data-row]", region).map((row) => row.id).join();
        left = left || before !== all("[data-row]", next).map((row) => row.id).join();
      } else {
        region.replaceWith(next);
      }
    }
    if (current) document.getElementById(current)?.classList.add("current");
    document.getElementById("stale").hidden = !left;
  } catch {
    // The server is away for a moment: the page stays as it is and the next event tries again.
  } finally {
    fetching = false;
  }
}

// At most one fetch a second, however many events come.
function schedule() {
  pending ??= setTimeout(refresh, 1000);
}

// The stream is open only while the page is visible: a hidden tab costs nothing, and catches up when it is shown.
const kinds = ["queue", "letter", "group", "operation", "breaker", "worker", "alert", "reset"];
let events = null;

function listen() {
  if (document.hidden) {
    events?.close();
    events = null;
  } else if (!events) {
    events = new EventSource(document.body.dataset.live);
    for (const kind of kinds) events.addEventListener(kind, schedule);
  }
}

if (document.body.dataset.live) {
  listen();
  document.addEventListener("visibilitychange", () => {
    listen();
    if (!document.hidden) schedule();
  });
  document.getElementById("stale")?.addEventListener("click", () => location.reload());
}
countSelected();
document.documentElement.classList.add("ready");
