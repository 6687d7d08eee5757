"use strict";
// Replaces what a page shows by a fresh copy every few seconds. Without this script, reload the page.
(() => {
  const main = document.querySelector("main[data-live]");
  const button = document.getElementById("pause");
  const stale = document.getElementById("stale");
  if (!main || !button || !stale) return;
  let paused = false;
  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Resume" : "Pause";
  });
  // Nobody loses the place, the field or the text that they have selected.
  const isBusy = () => paused || document.hidden || main.contains(document.activeElement) || !getSelection().isCollapsed;
  const refresh = async () => {
    if (!isBusy()) {
      try {
        const answer = await fetch(location.href);
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
        if (fresh && !isBusy()) main.replaceChildren(...fresh.childNodes);
        stale.hidden = true;
      } catch {
        stale.hidden = false;
      }
    }
    setTimeout(refresh, 5000);
  };
  setTimeout(refresh, 5000);
})();
