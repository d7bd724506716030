"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const drawn = new Map();

  // --- Dark and light: the system's choice, until the button says otherwise.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  let chosen = null;

  function setTheme() {
    const isDark = chosen === null ? dark.matches : chosen === "dark";
    root.dataset.theme = isDark ? "dark" : "light";
    button.textContent = isDark ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark ? "Use light colours" : "Use dark colours");
    for (const place of drawn.keys()) draw(place);
  }
  button.addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    setTheme();
  });
  dark.addEventListener("change", setTheme);

  // --- Plots: made when they come into view.
  function colour(name) {
    return getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  }

  const palette = { "@accent": 1, "@good": 1, "@warn": 1, "@muted": 1, "@text": 1 };

  // A specification's places, and the names of colours, replaced; other text that begins so is an author's.
  function filled(value, fill) {
    if (typeof value === "string" && value.startsWith("@")) {
      if (Object.hasOwn(fill, value)) return filled(fill[value], {});
      return Object.hasOwn(palette, value) ? colour(value.slice(1)) : value;
    }
    if (Array.isArray(value)) return value.map((item) => filled(item, fill));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, filled(item, fill)]));
    }
    return value;
  }

  function config(width) {
    const text = colour("text"), faint = colour("faint"), line = colour("line");
    const font = "system-ui, 'DejaVu Sans', sans-serif";
    const narrow = width < 480;
    return {
      background: "transparent",
      font,
      view: { stroke: line },
      axis: {
        labelColor: text, titleColor: faint, gridColor: line, gridOpacity: 0.7, domainColor: line, tickColor: line, titleFontWeight: "normal",
        labelFontSize: 12, titleFontSize: 12, ...(narrow ? { labelLimit: 110, titleLimit: 240 } : {}),
      },
      legend: { labelColor: text, titleColor: faint, labelFontSize: 12, titleFontSize: 12, labelLimit: narrow ? 260 : 420 },
      text: { fontSize: 12, font },
      range: { category: { scheme: root.dataset.theme === "dark" ? "set2" : "dark2" } },
    };
  }

  async function draw(place) {
    const plot = data.plots[Number(place.dataset.plot)];
    const width = place.clientWidth;
    if (!width) return;
    // The reference's name stands between the legend and the frame.
    const offset = plot.kind.endsWith("reference") ? 28 : 12;
    const legend = { orient: "top", columns: width < 480 ? 1 : 4, title: null, symbolOpacity: 1, offset };
    const titled = { ...legend, titleFontWeight: "normal", titleLimit: width - 20 };
    delete titled.title;
    const spec = filled(data.kinds[plot.kind], { "@legend": legend, "@titled": titled, "@ticks": width < 480 ? 3 : 10, ...plot.fill });
    // Names beside the axis leave nothing of a phone's width: there the rank stands for them, as in the table's first column.
    if (plot.kind.startsWith("landscape") && width < 480) {
      spec.encoding.y = { ...spec.encoding.y, field: "rank", axis: { ...spec.encoding.y.axis, labelLimit: 40 }, title: "rank" };
    }
    const result = await vegaEmbed(
      place,
      {
        ...spec,
        description: plot.alt,
        data: { values: plot.values },
        ...(plot.height ? { height: plot.height } : {}),
      },
      { mode: "vega-lite", actions: false, ast: true, renderer: "svg", config: config(width), tooltip: { theme: root.dataset.theme } },
    );
    const before = drawn.get(place);
    drawn.set(place, { result, width });
    if (before) before.result.finalize();
    place.dataset.drawn = "yes";
  }

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      draw(entry.target).catch((error) => {
        entry.target.textContent = `This plot could not be drawn (${error.message}); the table has its figures.`;
        console.error(error);
      });
    }
  }, { rootMargin: "300px" });

  let resizing;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => {
      for (const [place, { width }] of drawn) if (place.clientWidth && place.clientWidth !== width) draw(place);
    }, 150);
  });

  // --- Tables: a click on a heading sorts by it, another one the other way round; what has no value stays last.
  function keyOf(row, column) {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent.trim() : cell.dataset.v === "" ? null : Number(cell.dataset.v);
  }

  const collator = new Intl.Collator("en", { numeric: true });

  function sort(table, heading) {
    const column = heading.cellIndex;
    const direction = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows].map((row) => [keyOf(row, column), row]);
    rows.sort(([a], [b]) => {
      const noA = a === null || a === "", noB = b === null || b === "";
      if (noA || noB) return noA - noB;
      return direction * (typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b));
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    for (const heading of table.tHead.rows[0].cells) {
      const inner = document.createElement("button");
      inner.type = "button";
      inner.append(...heading.childNodes);
      heading.append(inner);
      inner.addEventListener("click", () => sort(table, heading));
    }
  }

  // --- Filters: words that all must be found, a target, a state; the table and the details follow.
  const words = document.getElementById("words");
  const target = document.getElementById("target");
  const state = document.getElementById("state");
  const shown = document.getElementById("shown");
  const rows = [...document.querySelectorAll("#table tbody tr")];

  function filter() {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const fits = (!target.value || row.dataset.target === target.value)
        && (!state.value || row.dataset.state.split(" ").includes(state.value))
        && wanted.every((word) => row.dataset.text.includes(word));
      row.hidden = !fits;
      document.getElementById(row.dataset.details).hidden = !fits;
      count += fits;
    }
    shown.textContent = `${count} of ${rows.length} shown`;
  }
  for (const control of [words, target, state]) control.addEventListener("input", filter);
  document.getElementById("all").addEventListener("click", (event) => {
    const open = event.target.getAttribute("aria-pressed") !== "true";
    event.target.setAttribute("aria-pressed", String(open));
    event.target.textContent = open ? "Close all" : "Open all";
    for (const details of document.querySelectorAll("details.work:not([hidden])")) details.open = open;
  });

  // --- A link to a workload opens it.
  function open() {
    const found = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (found && found.tagName === "DETAILS") {
      found.hidden = false;
      found.open = true;
      found.scrollIntoView();
      found.querySelector("summary").focus({ preventScroll: true });
    }
  }
  addEventListener("hashchange", open);

  setTheme();
  filter();
  for (const place of document.querySelectorAll(".plot")) seen.observe(place);
  open();
})();
