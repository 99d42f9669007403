// Draws the charts, links them, and sorts tables. Names of methods and clients are always treated as text.
(() => {
  "use strict";
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const page = JSON.parse(document.getElementById("data").textContent);
  root.classList.add("js");

  // The tooltip.
  const tip = document.body.appendChild(document.createElement("div"));
  tip.id = "tip";
  tip.hidden = true;
  const showTip = (handler, event, item, value) => {
    tip.hidden = value == null || value === "";
    if (tip.hidden) return;
    const facts = typeof value === "object" ? Object.entries(value).map(([key, fact]) => `${key}: ${fact}`) : [value];
    tip.textContent = facts.join("\n");
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
  };

  const theme = () => {
    const style = getComputedStyle(root);
    const [ink, soft, line] = ["--ink", "--soft", "--line"].map((name) => style.getPropertyValue(name).trim());
    const axis = { labelColor: soft, titleColor: ink, gridColor: line, domainColor: soft, tickColor: soft };
    const legend = { labelColor: soft, titleColor: ink };
    return { background: null, font: "system-ui, sans-serif", axis, legend, text: { color: ink }, rule: { color: soft } };
  };
  // Colours are replaced in these properties only, because names of clients may look like colours.
  const coloured = (node, key) => {
    if (typeof node === "string") return ["value", "range", "color"].includes(key) ? page.dark[node] ?? node : node;
    if (Array.isArray(node)) return key === "values" ? node : node.map((item) => coloured(item, key));
    if (node === null || typeof node !== "object") return node;
    return Object.fromEntries(Object.entries(node).map(([name, item]) => [name, coloured(item, name)]));
  };

  document.querySelectorAll("section.comparison").forEach((section, number) => {
    const state = { method: null, client: null };
    const views = new Map();
    const chips = [...section.querySelectorAll(".chip")];
    const select = section.querySelector("select");
    const content = page.sections[number];

    const told = section.querySelector(".told");
    // A sentence about the highlighted client: its score under each method.
    const say = (client) => {
      const { samples, scores, methods, percent, heading, split } = content.clients;
      told.hidden = client === null || !Object.hasOwn(scores, client);
      if (told.hidden) return;
      const known = methods.map((name, place) => [name, scores[client][place]]).filter(([, score]) => score !== null);
      const words = known.map(([name, score]) => `${name} ${percent ? `${Math.round(100 * score)} %` : Number(score.toPrecision(3))}`);
      told.textContent = `${client} (${samples[client]} ${split} samples), ${heading}: ${words.join(", ")}`;
    };
    const tell = (view) => {
      for (const name of ["method", "client"]) view.signal(name, state[name]);
      return view.runAsync();
    };
    const highlight = (name, value) => {
      state[name] = state[name] === value ? null : value;
      chips.forEach((chip) => chip.setAttribute("aria-pressed", String(chip.dataset.method === state.method)));
      section.querySelectorAll("tr[data-method]").forEach((row) => row.classList.toggle("lit", row.dataset.method === state.method));
      if (select) select.value = state.client ?? "";
      say(state.client);
      const other = state.method !== null && state.method !== content.baseline;
      section.querySelectorAll("[data-shown]").forEach((place) => (place.textContent = other ? state.method : content.chosen));
      views.forEach(tell);
    };
    // A click on a name in the table reaches its row, too.
    section.querySelectorAll(".chip, tr[data-method]").forEach((item) => item.addEventListener("click", () => {
      if (getSelection().isCollapsed) highlight("method", item.dataset.method); // not while numbers are selected
    }));
    select?.addEventListener("change", () => highlight("client", select.value === "" ? state.client : select.value));
    section.querySelector(".reset")?.addEventListener("click", () => {
      if (state.method !== null) highlight("method", state.method);
      if (state.client !== null) highlight("client", state.client);
    });

    const draw = async (figure) => {
      const place = figure.querySelector(".chart");
      views.get(figure)?.finalize();
      // The interpreter (ast) evaluates expressions without eval, which the page's security policy forbids.
      const options = { mode: "vega-lite", actions: false, ast: true, defaultStyle: false, renderer: "canvas", config: theme(), tooltip: showTip };
      const spec = structuredClone(content.specs[figure.dataset.chart]); // Vega modifies the rows that it reads
      const { view } = await vegaEmbed(place, dark.matches ? coloured(spec) : spec, options);
      views.set(figure, view);
      view.addEventListener("click", (event, item) => {
        const datum = item?.datum ?? {};
        if (typeof datum.client === "string") highlight("client", datum.client);
        else if (typeof datum.method === "string") highlight("method", datum.method);
      });
      figure.classList.add("live");
      await tell(view);
    };
    const figures = [...section.querySelectorAll("figure[data-chart]")];
    const attempt = (figure) => draw(figure).catch((error) => {
      root.classList.remove("js"); // the still pictures remain visible
      console.error(error);
    });
    const near = new IntersectionObserver((entries) => entries.forEach((entry) => {
      if (!entry.isIntersecting) return;
      near.unobserve(entry.target);
      attempt(entry.target);
    }), { rootMargin: "400px" });
    figures.forEach((figure) => near.observe(figure));
    dark.addEventListener("change", () => [...views.keys()].forEach(attempt));
  });

  const scrollers = [...document.querySelectorAll(".scroll")];
  const hint = (place) => place.classList.toggle("more", place.scrollWidth - place.clientWidth - place.scrollLeft > 1);
  const sizes = new ResizeObserver((entries) => entries.forEach((entry) => hint(entry.target)));
  scrollers.forEach((place) => {
    place.addEventListener("scroll", () => hint(place), { passive: true });
    sizes.observe(place);
  });

  document.querySelectorAll("table.sortable").forEach((table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value ?? "";
      const compare = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
        return down ? -order : order;
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
    }));
  });
})();
