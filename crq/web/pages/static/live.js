// Keeps a page up to date: asks for it again and exchanges the parts marked data-live. Without this
// script everything works, and a reload does the same. What somebody has focused,
// selected, opened or typed stays.
"use strict";

(() => {
  const EVERY = 3000; // ms
  const PATIENCE = 10000; // ms until an answer is given up
  const light = document.getElementById("live");

  const say = (text, ok) => {
    if (!light) return;
    if (light.textContent !== text) light.textContent = text;
    light.classList.toggle("off", !ok);
  };

  const used = (part) => {
    const selection = document.getSelection();
    const selected = selection && !selection.isCollapsed && selection.containsNode(part, true);
    const typed = [...part.querySelectorAll("input")].some((each) => each.value !== each.defaultValue);
    const opened = part.querySelector("details[open]");
    return part.contains(document.activeElement) || selected || typed || opened;
  };

  const exchange = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const name = CSS.escape(part.dataset.live);
      const next = fresh.querySelector(`[data-live="${name}"]`);
      if (next && !used(part) && next.outerHTML !== part.outerHTML) part.replaceWith(next);
    }
    if (document.querySelector("[data-live]:not([data-live=clock])")) document.title = fresh.title;
    started = performance.now();
  };

  const ask = async () => {
    if (document.hidden) return;
    try {
      const answer = await fetch(location.href, {
        headers: { "X-Live": "1" },
        redirect: "manual",
        signal: AbortSignal.timeout(PATIENCE),
      });
      if (answer.type === "opaqueredirect") {
        say("signed out: load the page again", false);
        return;
      }
      if (!answer.ok) throw new Error(String(answer.status));
      exchange(await answer.text());
      say("live", true);
    } catch {
      say("not live: no answer", false);
    }
  };

  const span = (seconds) => {
    if (seconds <= 0) return "now";
    if (seconds < 10) return `${seconds.toFixed(1)} s`;
    const whole = Math.floor(seconds);
    for (const [size, unit, part, smaller] of [
      [86400, "d", 3600, "h"],
      [3600, "h", 60, "min"],
      [60, "min", 1, "s"],
    ]) {
      if (whole >= size) {
        const rest = Math.floor((whole % size) / part);
        return `${Math.floor(whole / size)} ${unit}` + (rest ? ` ${rest} ${smaller}` : "");
      }
    }
    return `${whole} s`;
  };

  // Counted from the server's clock: this machine's may be wrong.
  let started = performance.now();
  const count = () => {
    for (const time of document.querySelectorAll(".countdown")) {
      const passed = (performance.now() - started) / 1000;
      time.textContent = span(Number(time.dataset.until) - Number(time.dataset.now) - passed);
    }
  };

  if (document.querySelector("[data-live]:not([data-live=clock])")) {
    say("live", true);
    setInterval(ask, EVERY);
    document.addEventListener("visibilitychange", ask);
  }
  setInterval(count, 1000);
})();
