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
    const folds = () => [...tree.querySelectorAll(".fold")];
    const tools = document.getElementById("tree-tools");
    const boxes = [...tools.querySelectorAll("input")];
    const nodes = [...tree.querySelectorAll("li")];
    const filter = () => {
      const wanted = (kind) => new Set(boxes.filter((b) => b.checked && kind in b.dataset).map((b) => b.dataset[kind]));
      const [outcomes, proposers] = [wanted("outcome"), wanted("proposer")];
      const needed = new Set([nodes[0]]); // the original, and what wanted candidates were made from
      let shown = 0;
      for (const li of [...nodes].reverse()) {
        const fits = !("outcome" in li.dataset) || (outcomes.has(li.dataset.outcome) && proposers.has(li.dataset.proposer));
        if (fits || needed.has(li)) needed.add(li.parentElement.closest("li"));
        li.classList.toggle("away", !fits && !needed.has(li));
        li.classList.toggle("aside", !fits && needed.has(li));
        shown += fits;
      }
      document.getElementById("tree-shown").textContent = `${shown} of ${nodes.length} candidates fit the filters.`;
    };
    const outcomes = (want) => {
      const passed = new Set(nodes.filter((li) => !li.classList.contains("failed")).map((li) => li.dataset.outcome));
      boxes.filter((b) => "outcome" in b.dataset).forEach((b) => { b.checked = want(b, passed); });
      filter();
    };
    const acts = {
      unfold: () => folds().forEach((d) => { d.open = true; }),
      fold: () => folds().forEach((d) => { d.open = false; }),
      path: () => folds().forEach((d) => { d.open = d.parentElement.classList.contains("chosen"); }),
      passed: () => outcomes((box, passed) => passed.has(box.dataset.outcome)),
      every: () => outcomes(() => true),
    };
    tools.hidden = false;
    tools.addEventListener("click", (event) => {
      const act = event.target.dataset && event.target.dataset.do;
      if (act) acts[act]();
    });
    tools.addEventListener("change", filter);
    filter();
    tree.addEventListener("keydown", (event) => {
      const here = event.target.closest("summary");
      if (!here || event.ctrlKey || event.altKey || event.metaKey) return;
      const fold = here.parentElement;
      const seen = () => [...tree.querySelectorAll("summary")].filter((s) => s.checkVisibility());
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

  document.querySelectorAll("figure").forEach((figure) => {
    const value = figure.querySelector(".value");
    figure.addEventListener("pointerover", (event) => {
      const title = event.target.querySelector(":scope > title");
      if (title) { value.textContent = title.textContent; value.hidden = false; }
    });
  });

  document.querySelectorAll("[data-copy]").forEach((pre) => {
    const box = document.createElement("div");
    const button = document.createElement("button");
    const name = `Copy ${pre.dataset.copy}`;
    box.className = "copies";
    button.type = "button";
    button.textContent = name;
    button.setAttribute("aria-live", "polite");
    pre.replaceWith(box);
    box.append(pre, button);
    const select = () => { // a browser may keep the clipboard from a file: then the text is selected, to be copied by hand
      getSelection().selectAllChildren(pre);
      return "Selected: copy it with the keyboard";
    };
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(pre.textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = select();
      }
      setTimeout(() => { button.textContent = name; }, 2000);
    });
  });

  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details[data-print]:not([open])")];
    opened.forEach((d) => { d.open = true; });
  });
  window.addEventListener("afterprint", () => { opened.forEach((d) => { d.open = false; }); opened = []; });
})();
