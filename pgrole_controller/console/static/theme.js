// Runs before the first paint, so that a chosen theme does not flash.
(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const theme = localStorage.getItem("theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch {
    root.dataset.storage = "none"; // storage is blocked: the system's theme is used
  }
})();
