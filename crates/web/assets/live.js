// Keeps the page fresh while it is visible: fetches the same address again and patches only what differs, so
// that nothing jumps under the pointer and focus stays. The page is complete without this script.
"use strict";

const PERIOD_MS = 1500;
const ANSWER_MS_MAX = 5000; // a service that hangs is shown as one that is gone
const badge = document.getElementById("live");
let last = Date.now();

// Makes `old` equal to `fresh`, touching only what differs.
function carry(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) { old.replaceWith(fresh.cloneNode(true)); return; }
  if (old.nodeType === Node.TEXT_NODE) { if (old.data !== fresh.data) old.data = fresh.data; return; }
  if (old.nodeType !== Node.ELEMENT_NODE) return;
  if (old.matches("details")) return; // somebody may have opened it
  if (old.matches("form")) { // a form that is being filled in stays; a button with another meaning now is replaced
    if (!old.contains(document.activeElement) && !old.matches(".filter") && old.outerHTML !== fresh.outerHTML) old.replaceWith(fresh.cloneNode(true));
    return;
  }
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  const before = [...old.childNodes], after = [...fresh.childNodes];
  after.forEach((node, place) => before[place] ? carry(before[place], node) : old.append(node.cloneNode(true)));
  before.slice(after.length).forEach((node) => node.remove());
}

// What is shown is from this time, in UTC like all times of the page.
const time = (at) => new Date(at).toISOString().slice(11, 19);

async function refresh() {
  if (document.hidden || document.querySelector("tbody tr:hover")?.closest("[data-still]")) return;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS_MAX) });
    if (answer.redirected) { location.reload(); return; } // the session is over: no form of another page is drawn in here
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    const main = document.querySelector("main");
    if (fresh && main) carry(main, fresh);
    last = Date.now();
    if (badge) badge.textContent = `live, ${time(last)}`;
  } catch {
    if (badge) badge.textContent = `no answer since ${time(last)}`;
  }
}

const root = document.documentElement;
const stored = localStorage.getItem("theme");
if (stored) root.dataset.theme = stored;
document.getElementById("theme")?.addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
});

if (document.querySelector("main[data-live]")) {
  if (badge) badge.textContent = `live, ${time(last)}`;
  const turn = () => refresh().finally(() => setTimeout(turn, PERIOD_MS));
  setTimeout(turn, PERIOD_MS);
}
