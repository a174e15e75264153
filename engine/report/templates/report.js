"use strict";
(() => {
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const kept = () => { try { return localStorage.getItem("optiml-theme"); } catch { return null; } };
  const dark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const name = () => { theme.textContent = dark() ? "Light theme" : "Dark theme"; };
  if (["dark", "light"].includes(kept())) root.dataset.theme = kept();
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("optiml-theme", root.dataset.theme); } catch { /* a file may have no storage */ }
    name();
  });
  system.addEventListener("change", name);
  name();

  const foldable = (tree) => {
    const folds = () => [...tree.querySelectorAll("details")];
    const tools = document.getElementById("tree-tools");
    const acts = {
      unfold: () => folds().forEach((d) => { d.open = true; }),
      fold: () => folds().forEach((d) => { d.open = false; }),
      path: () => folds().forEach((d) => { d.open = d.parentElement.classList.contains("chosen"); }),
    };
    tools.hidden = false;
    tools.addEventListener("click", (event) => {
      const act = event.target.dataset && event.target.dataset.do;
      if (act) acts[act]();
    });
    document.getElementById("passed-only").addEventListener("change", (event) => {
      tree.classList.toggle("passed-only", event.target.checked);
    });
    tree.addEventListener("keydown", (event) => {
      const here = event.target.closest("summary");
      if (!here || event.ctrlKey || event.altKey || event.metaKey) return;
      const fold = here.parentElement;
      const seen = () => folds().map((d) => d.firstElementChild).filter((s) => s.checkVisibility());
      const step = (by) => { const all = seen(); const to = all[all.indexOf(here) + by]; if (to) to.focus(); };
      const above = () => { const up = fold.parentElement.closest("details"); if (up) up.firstElementChild.focus(); };
      const keys = {
        ArrowDown: () => step(1),
        ArrowUp: () => step(-1),
        ArrowRight: () => { if (fold.open) step(1); else fold.open = true; },
        ArrowLeft: () => { if (fold.open) fold.open = false; else above(); },
        Home: () => seen()[0].focus(),
        End: () => seen().at(-1).focus(),
      };
      if (keys[event.key]) { keys[event.key](); event.preventDefault(); }
    });
  };
  const search = document.getElementById("tree-root");
  if (search) foldable(search);

  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details[data-print]:not([open])")];
    opened.forEach((d) => { d.open = true; });
  });
  window.addEventListener("afterprint", () => { opened.forEach((d) => { d.open = false; }); opened = []; });
})();
